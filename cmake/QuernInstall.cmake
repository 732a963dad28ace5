# What `make install` writes: the program, both libraries, the headers, quern.pc and the CMake package `quern`.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/quern)

install(TARGETS quern_static quern_shared EXPORT quern_targets)
if(TARGET quern_program)
  install(TARGETS quern_program)
endif()
install(DIRECTORY include/quern DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

install(EXPORT quern_targets FILE quernTargets.cmake NAMESPACE quern:: DESTINATION ${package_dir})
configure_package_config_file(cmake/quernConfig.cmake.in ${PROJECT_BINARY_DIR}/package/quernConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/quernConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
string(REGEX REPLACE "[^/]+" ".." prefix_from_pc ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_file(cmake/quern.pc.in ${PROJECT_BINARY_DIR}/package/quern.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/quernConfig.cmake ${PROJECT_BINARY_DIR}/package/quernConfigVersion.cmake
  DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/package/quern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
