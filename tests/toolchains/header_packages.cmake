# Lets a cross build use the header-only dependencies of this machine: each gets a small package in
# the build folder whose include folder holds a link to that library's headers and nothing else, so
# that no header of this machine's C library is seen.
set(DECANT_HEADER_PACKAGES ${CMAKE_BINARY_DIR}/header-packages)

function(decant_header_package package target header)
  find_path(${package}_HEADERS NAMES ${header} PATHS /usr/include /usr/local/include
    PATH_SUFFIXES eigen3 NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
  if(NOT ${package}_HEADERS)
    return()
  endif()
  string(REGEX REPLACE "/.*" "" folder ${header})
  set(root ${DECANT_HEADER_PACKAGES}/${package})
  file(MAKE_DIRECTORY ${root}/include)
  file(CREATE_LINK ${${package}_HEADERS}/${folder} ${root}/include/${folder} SYMBOLIC)
  if(package STREQUAL Eigen3)
    file(CREATE_LINK ${${package}_HEADERS}/unsupported ${root}/include/unsupported SYMBOLIC)
  endif()
  file(WRITE ${root}/${package}Config.cmake
    "if(NOT TARGET ${target})\n  add_library(${target} INTERFACE IMPORTED)\n"
    "  set_target_properties(${target} PROPERTIES "
    "INTERFACE_INCLUDE_DIRECTORIES \"\${CMAKE_CURRENT_LIST_DIR}/include\"${ARGN})\nendif()\n")
  set(${package}_DIR ${root} CACHE PATH "" FORCE)
endfunction()

decant_header_package(fmt fmt::fmt-header-only fmt/core.h
  " INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1")
decant_header_package(nlohmann_json nlohmann_json::nlohmann_json nlohmann/json.hpp)
decant_header_package(Eigen3 Eigen3::Eigen Eigen/Core)
