# The few shapes a target of Quern can have.

# quern_library(<target> STATIC|SHARED): libquern.a or libquern.so from the objects.
function(quern_library target kind)
  add_library(${target} ${kind} $<TARGET_OBJECTS:quern_objects>)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME quern VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR} LINKER_LANGUAGE C)
  string(REPLACE quern_ "" export_name ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${export_name})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PUBLIC ${QUERN_JANSSON} m ${CMAKE_DL_LIBS} Threads::Threads)
  if(kind STREQUAL SHARED) # libraries of devices wait for their threads at exit, which dlclose must not run under the loader's lock
    target_link_options(${target} PRIVATE -Wl,-z,nodelete)
  endif()
endfunction()

# quern_program(<name> <glob> [INTERNAL]): one program from all files of the glob, if there are any.
# INTERNAL programs may include headers of src/ and tests/; the others see public headers only.
function(quern_program name glob)
  cmake_parse_arguments(PARSE_ARGV 2 arg "INTERNAL" "" "")
  file(GLOB sources CONFIGURE_DEPENDS ${glob})
  if(NOT sources)
    return()
  endif()
  quern_executable(${name} "${sources}" "${PROJECT_BINARY_DIR}" ${name})
  if(arg_INTERNAL)
    target_include_directories(${name}_program PRIVATE src tests)
  endif()
endfunction()

# quern_programs(<glob> <folder> [LINK <flags>]): a program <folder>/<name> from each file of the glob.
function(quern_programs glob folder)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "LINK")
  file(GLOB sources CONFIGURE_DEPENDS ${glob})
  add_custom_target(${folder})
  foreach(source ${sources})
    cmake_path(GET source STEM name)
    quern_executable(${folder}_${name} ${source} "${PROJECT_BINARY_DIR}/${folder}" ${name})
    target_link_options(${folder}_${name}_program PRIVATE ${arg_LINK})
    if(QUERN_FUZZ)
      target_include_directories(${folder}_${name}_program PRIVATE src tests)
    endif()
    add_dependencies(${folder} ${folder}_${name}_program)
  endforeach()
endfunction()

# quern_unit_tests(): each tests/<folder>/test_<name>.c, run in the source root so that it finds tests/ data.
function(quern_unit_tests)
  file(GLOB sources CONFIGURE_DEPENDS tests/*/test_*.c)
  add_custom_target(unit_tests)
  foreach(source ${sources})
    cmake_path(GET source STEM name)
    cmake_path(GET source PARENT_PATH parent)
    cmake_path(GET parent FILENAME folder)
    quern_executable(${folder}_${name} ${source} "${PROJECT_BINARY_DIR}/tests/${folder}" ${name})
    target_include_directories(${folder}_${name}_program PRIVATE src tests)
    target_link_libraries(${folder}_${name}_program PRIVATE cmocka)
    add_dependencies(unit_tests ${folder}_${name}_program)
    add_test(NAME ${folder}/${name} COMMAND ${folder}_${name}_program WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${folder}/${name} PROPERTIES TIMEOUT 1200 ENVIRONMENT QUERN_CACHE=${PROJECT_BINARY_DIR}/cache)
  endforeach()
endfunction()

# quern_executable(<id> <sources> <folder> <name>): the target <id>_program, written to <folder>/<name>.
function(quern_executable id sources folder name)
  add_executable(${id}_program ${sources})
  set_target_properties(${id}_program PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${folder})
  target_link_libraries(${id}_program PRIVATE quern_static)
endfunction()
