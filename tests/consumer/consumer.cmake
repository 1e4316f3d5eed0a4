# Users of the installed tree and of the source tree, label `install`.
if(NOT MOXIE_INSTALL OR NOT TARGET moxie_cli)
  return()
endif()

foreach(style IN ITEMS install find_package pkg_config add_subdirectory)
  add_test(NAME consumer.${style}
    COMMAND "${CMAKE_CURRENT_LIST_DIR}/consumer.sh" ${style} "${PROJECT_BINARY_DIR}")
  set_tests_properties(consumer.${style} PROPERTIES LABELS install TIMEOUT 900
    ENVIRONMENT "CC=${CMAKE_C_COMPILER};CXX=${CMAKE_CXX_COMPILER}")
endforeach()
set_tests_properties(consumer.install PROPERTIES FIXTURES_SETUP moxie_installed)
set_tests_properties(consumer.find_package consumer.pkg_config PROPERTIES FIXTURES_REQUIRED moxie_installed)
