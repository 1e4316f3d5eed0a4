# The objects of all layers as a shared and as a static library.

get_property(moxie_objects GLOBAL PROPERTY MOXIE_OBJECTS)
set(moxie_headers
  api.hpp catalog.hpp certificate.hpp checkpoint.hpp convert.hpp device.hpp engines.hpp execution.hpp json.hpp layer.hpp measure.hpp model.hpp
  moxie.h moxie.hpp pack.hpp placement.hpp plan.hpp probe.hpp quantize.hpp report.hpp status.hpp synth.hpp tensors.hpp types.hpp verify.hpp)
list(TRANSFORM moxie_headers PREPEND "${PROJECT_SOURCE_DIR}/include/moxie/")

add_library(moxie SHARED ${moxie_objects})
add_library(moxie_static STATIC ${moxie_objects})
add_library(moxie::moxie ALIAS moxie)
add_library(moxie::moxie_static ALIAS moxie_static)

foreach(library IN ITEMS moxie moxie_static)
  target_compile_features(${library} PUBLIC cxx_std_20)
  target_sources(${library} PUBLIC FILE_SET HEADERS
    BASE_DIRS "${PROJECT_SOURCE_DIR}/include" FILES ${moxie_headers})
  set_target_properties(${library} PROPERTIES LINKER_LANGUAGE CXX)
  if(NOT MOXIE_FUZZ)
    target_link_libraries(${library} PRIVATE OpenMP::OpenMP_CXX)
  endif()
  if(MOXIE_CUDA)
    target_link_libraries(${library} PRIVATE CUDA::cudart_static)
  endif()
endforeach()

set_target_properties(moxie PROPERTIES
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}
  VERIFY_INTERFACE_HEADER_SETS ${PROJECT_IS_TOP_LEVEL})
# Both libraries are called libmoxie, as pkg-config and the linker's -l expect.
set_target_properties(moxie_static PROPERTIES OUTPUT_NAME moxie)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_link_options(moxie PRIVATE LINKER:-z,defs)
endif()
