// nlohmann-json without its assertions, which would end the host's process where NDEBUG is missing.
#pragma once

#ifndef JSON_ASSERT
#define JSON_ASSERT(condition) ((void)0)
#endif
#include <nlohmann/json.hpp>
