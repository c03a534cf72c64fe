// Eigen for the reference path: no threads of its own, no abort on a failed check.
#pragma once

#include "base/result.hpp"

#ifdef eigen_assert
#error "include backend/reference/eigen.hpp before any Eigen header"
#endif
#define eigen_assert(condition) DECANT_ASSERT(condition)
#ifndef EIGEN_DONT_PARALLELIZE
#define EIGEN_DONT_PARALLELIZE
#endif
#include <Eigen/Core>
