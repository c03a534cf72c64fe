# find_package(decant): the imported target decant::decant. Its other dependencies are headers that
# were compiled in.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/decant-targets.cmake)
