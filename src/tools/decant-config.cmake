# find_package(decant): the imported target decant::decant. Its other dependencies are headers that
# were compiled in; a build with DECANT_CUDA links the CUDA runtime's static library.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
if(@DECANT_CUDA@)
  find_dependency(CUDAToolkit)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/decant-targets.cmake)
