# What `cmake --install` writes: headers, both libraries, the command, CMake and pkg-config files.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Two export sets: only the static library asks its user for an OpenMP runtime.
install(TARGETS moxie EXPORT moxieTargets FILE_SET HEADERS)
install(TARGETS moxie_static EXPORT moxieStaticTargets FILE_SET HEADERS)
if(TARGET moxie_cli)
  install(TARGETS moxie_cli)
endif()

set(moxie_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/moxie")
install(EXPORT moxieTargets NAMESPACE moxie:: DESTINATION "${moxie_cmake_dir}")
install(EXPORT moxieStaticTargets NAMESPACE moxie:: DESTINATION "${moxie_cmake_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/moxieConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/moxieConfig.cmake" INSTALL_DESTINATION "${moxie_cmake_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/moxieConfigVersion.cmake"
  COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/moxieConfig.cmake" "${PROJECT_BINARY_DIR}/moxieConfigVersion.cmake"
  DESTINATION "${moxie_cmake_dir}")

# The prefix in moxie.pc is relative to the file, so that an installed tree can be moved.
file(RELATIVE_PATH moxie_pc_to_prefix
  "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" moxie_pc_to_prefix "${moxie_pc_to_prefix}")
list(JOIN OpenMP_CXX_FLAGS " " moxie_pc_libs_private)
# For who links the archive with a C compiler: the C++ library under the name that this compiler gives it.
foreach(library IN LISTS CMAKE_CXX_IMPLICIT_LINK_LIBRARIES)
  if(library MATCHES "^(stdc[+][+]|c[+][+]|m)$")
    string(APPEND moxie_pc_libs_private " -l${library}")
  endif()
endforeach()
if(MOXIE_CUDA)
  string(APPEND moxie_pc_libs_private " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt -lpthread")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/moxie.pc.in" "${PROJECT_BINARY_DIR}/moxie.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/moxie.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
