# Generated sources of the kernels, so that these compile side by side, and one for all entries that
# FA3_KERNELS leaves without a kernel.

# fa3_catalogue_sources(<result> <engine> <folder> <Pass> [EXCLUDE <words>] <element>...)
# Into list <result>, the sources in <folder>: one for each row of the engine's catalogue of the pass
# (Forward or Backward), for these elements. EXCLUDE: without the rows whose names match.
function(fa3_catalogue_sources result engine folder Pass)
  cmake_parse_arguments(PARSE_ARGV 4 arg "" "EXCLUDE" "")
  fa3_read_catalogue(lines ${engine})
  set(sources)
  set(absent)
  set(before "namespace fa3::${engine} {\n")
  set(after "}  // namespace fa3::${engine}\n")
  string(TOLOWER ${Pass} pass)
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^fa3 kernel ${pass} ([0-9]+) ([a-z]+) \"([^\"]+)\" [^ ]+ (.+)$")
      continue()
    endif()
    set(row ${CMAKE_MATCH_1})
    set(kind ${CMAKE_MATCH_2})
    set(name ${CMAKE_MATCH_3})
    string(REPLACE " " "\"\n#include \"" headers "${CMAKE_MATCH_4}")
    if(arg_EXCLUDE AND name MATCHES "${arg_EXCLUDE}")
      continue()
    endif()
    set(instances)
    foreach(element IN LISTS arg_UNPARSED_ARGUMENTS)
      set(instance "template ${Pass}Kernel ${pass}_entry<${row}, Element::k${element}>();\n")
      if(NOT FA3_KERNELS OR (FA3_KERNELS STREQUAL "SAMPLE" AND NOT kind STREQUAL "sample")
          OR (FA3_KERNELS MATCHES "^(SAMPLE|BF16)$" AND NOT element STREQUAL "Bf16"))
        string(APPEND absent "${instance}")
      else()
        string(APPEND instances "${instance}")
      endif()
    endforeach()
    if(instances)
      set(source ${folder}/${pass}_${row}.cu)
      file(CONFIGURE OUTPUT ${source} @ONLY CONTENT "// @name@
#include \"@headers@\"
#include \"engine/@engine@/instances/@pass@_entry.cuh\"
@before@@instances@@after@")
      list(APPEND sources ${source})
    endif()
  endforeach()
  if(absent)
    set(source ${folder}/no_${pass}_kernels.cu)
    file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
      "#include \"@PROJECT_SOURCE_DIR@/tests/cpp/engine/@engine@/no_kernels.h\"
@before@@absent@@after@")
    list(APPEND sources ${source})
  endif()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# The lines of an engine's catalogue (kernels/list.cpp), which are read from its object: for another
# machine too. tools/kernel_code.py reads Hopper's in generated/engine/hopper/kernels.txt.
function(fa3_read_catalogue result engine)
  get_property(lines GLOBAL PROPERTY fa3_catalogue_of_${engine})
  if(NOT lines)
    set(root ${PROJECT_SOURCE_DIR}/src/engine)
    file(GLOB parts ${root}/${engine}/kernels/*.* ${root}/${engine}/config/*.h
      ${root}/cuda/catalogue/*.h)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${parts})
    set(folder ${PROJECT_BINARY_DIR}/generated/engine/${engine})
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    try_compile(compiled ${PROJECT_BINARY_DIR}/CMakeFiles/kernels_of_${engine}
      ${root}/${engine}/kernels/list.cpp
      CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}/src;${PROJECT_SOURCE_DIR}/include"
      COMPILE_DEFINITIONS -fno-lto
      CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON
      COPY_FILE ${folder}/kernels.a
      OUTPUT_VARIABLE said)
    if(NOT compiled)
      message(FATAL_ERROR "fa3: the catalogue of kernels does not compile:\n${said}")
    endif()
    file(STRINGS ${folder}/kernels.a lines REGEX "^fa3 kernel ")
    list(JOIN lines "\n" text)
    file(CONFIGURE OUTPUT ${folder}/kernels.txt @ONLY CONTENT "@text@\n")
    set_property(GLOBAL PROPERTY fa3_catalogue_of_${engine} "${lines}")
  endif()
  set(${result} "${lines}" PARENT_SCOPE)
endfunction()
