# The few shapes a target of Quern can have.

# quern_public_object(<variable>): all objects linked into one, in which nothing but the public functions is global.
function(quern_public_object variable)
  set(all ${PROJECT_BINARY_DIR}/quern_all.o)
  set(public ${PROJECT_BINARY_DIR}/quern_public.o)
  add_custom_command(OUTPUT ${public}
    COMMAND ${CMAKE_LINKER} -r -o ${all} $<TARGET_OBJECTS:quern_objects>
    COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${all} ${public}
    COMMAND ${CMAKE_COMMAND} -E rm ${all}
    DEPENDS quern_objects $<TARGET_OBJECTS:quern_objects> COMMENT "Hiding what is not public" VERBATIM COMMAND_EXPAND_LISTS)
  set_source_files_properties(${public} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${variable} ${public} PARENT_SCOPE)
endfunction()

# quern_library(<target> STATIC|SHARED): libquern.a or libquern.so from the objects. Both export public functions only.
function(quern_library target kind)
  set(objects $<TARGET_OBJECTS:quern_objects>)
  if(kind STREQUAL STATIC)
    quern_public_object(objects)
  endif()
  quern_archive(${target} ${kind} ${objects})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME quern VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR})
  string(REPLACE quern_ "" export_name ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${export_name})
  if(kind STREQUAL SHARED) # libraries of devices wait for their threads at exit, which dlclose must not run under the loader's lock
    target_link_options(${target} PRIVATE -Wl,-z,nodelete)
  endif()
endfunction()

# quern_archive(<target> STATIC|SHARED <objects>): a library of objects, with what its users need.
function(quern_archive target kind)
  add_library(${target} ${kind} ${ARGN})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PUBLIC ${QUERN_JANSSON} m ${CMAKE_DL_LIBS} Threads::Threads)
endfunction()

# quern_program(<name> <glob> [INTERNAL]): one program from all files of the glob, if there are any.
function(quern_program name glob)
  file(GLOB sources CONFIGURE_DEPENDS ${glob})
  if(sources)
    quern_executable(${name} "${sources}" "${PROJECT_BINARY_DIR}" ${name} ${ARGN})
  endif()
endfunction()

# quern_programs(<glob> <folder> [INTERNAL] [LINK <flags>]): a program <folder>/<name> from each file of the glob.
function(quern_programs glob folder)
  file(GLOB sources CONFIGURE_DEPENDS ${glob})
  add_custom_target(${folder})
  foreach(source ${sources})
    cmake_path(GET source STEM name)
    quern_executable(${folder}_${name} ${source} "${PROJECT_BINARY_DIR}/${folder}" ${name} ${ARGN})
    add_dependencies(${folder} ${folder}_${name}_program)
  endforeach()
endfunction()

# quern_unit_tests(): each tests/<folder>/test_<name>.c, run in the source root so that it finds tests/ data. Not optimized: to compile a
# test costs more than to run it.
function(quern_unit_tests)
  file(GLOB sources CONFIGURE_DEPENDS tests/*/test_*.c)
  add_custom_target(unit_tests)
  foreach(source ${sources})
    cmake_path(GET source STEM name)
    cmake_path(GET source PARENT_PATH parent)
    cmake_path(GET parent FILENAME folder)
    quern_executable(${folder}_${name} ${source} "${PROJECT_BINARY_DIR}/tests/${folder}" ${name} INTERNAL)
    target_compile_options(${folder}_${name}_program PRIVATE -O0)
    if(folder STREQUAL zoo) # the networks belong to the program, which has no library that a test could use
      file(GLOB networks CONFIGURE_DEPENDS cli/zoo*.c)
      target_sources(${folder}_${name}_program PRIVATE ${networks})
      target_include_directories(${folder}_${name}_program PRIVATE cli)
    endif()
    target_link_libraries(${folder}_${name}_program PRIVATE cmocka)
    add_dependencies(unit_tests ${folder}_${name}_program)
    add_test(NAME ${folder}/${name} COMMAND ${folder}_${name}_program WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${folder}/${name} PROPERTIES TIMEOUT 1200 ENVIRONMENT QUERN_CACHE=${PROJECT_BINARY_DIR}/cache)
  endforeach()
endfunction()

# quern_slow_tests(<name> ...): a fifth of all tests takes nine tenths of the time. Each gets one of the labels slow-0 to slow-9,
# so that `ctest -LE "slow-[^3]"` runs all others and a tenth of them.
function(quern_slow_tests)
  foreach(test ${ARGN})
    list(FIND ARGN ${test} number)
    math(EXPR number "${number} % 10")
    set_property(TEST ${test} PROPERTY LABELS slow-${number})
  endforeach()
endfunction()

# quern_executable(<id> <sources> <folder> <name> [INTERNAL] [LINK <flags>]): the target <id>_program, written to <folder>/<name>.
# INTERNAL programs may include headers of src/ and tests/, and find what these declare; the others see what is public.
function(quern_executable id sources folder name)
  cmake_parse_arguments(PARSE_ARGV 4 arg "INTERNAL" "" "LINK")
  add_executable(${id}_program ${sources})
  set_target_properties(${id}_program PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${folder})
  target_link_options(${id}_program PRIVATE ${arg_LINK})
  if(arg_INTERNAL)
    target_include_directories(${id}_program PRIVATE src tests)
    target_link_libraries(${id}_program PRIVATE quern_internal)
  else()
    target_link_libraries(${id}_program PRIVATE quern_static)
  endif()
endfunction()
