# Kernels for GPUs: nvcc, the static runtime, one object library per folder of src/kernels/cuda.

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES OFF)  # each folder names its own
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# moxie_cuda_kernels(<name> ARCHITECTURES arch... SOURCES file... LINKS layer... [OPTIONS nvcc-option...])
function(moxie_cuda_kernels name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ARCHITECTURES;SOURCES;LINKS;OPTIONS")
  set(target moxie_${name})
  add_library(${target} OBJECT ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES
    CUDA_ARCHITECTURES "${arg_ARCHITECTURES}"
    CUDA_RUNTIME_LIBRARY Static
    CUDA_VISIBILITY_PRESET hidden
    POSITION_INDEPENDENT_CODE ON
    MOXIE_LAYER_LINKS "${arg_LINKS}")
  # CMake 3.25 does not know that nvcc takes C++20. -v reports registers, spills and stack frames for tools/check_spills.py.
  target_compile_options(${target} PRIVATE
    -std=c++20 ${arg_OPTIONS} --expt-relaxed-constexpr -Xptxas=-v -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers)
  if(MOXIE_WERROR)
    target_compile_options(${target} PRIVATE -Werror=all-warnings -Xcompiler=-Werror)
  endif()
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  list(TRANSFORM arg_LINKS PREPEND moxie_ OUTPUT_VARIABLE links)
  target_link_libraries(${target} PUBLIC ${links} CUDA::cudart_static)
  set_property(GLOBAL APPEND PROPERTY MOXIE_OBJECTS $<TARGET_OBJECTS:${target}>)
endfunction()
