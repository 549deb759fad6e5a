# Generated sources of the kernels, so that these compile side by side, and one for all entries that
# FA3_KERNELS leaves without a kernel.

# fa3_catalogue_sources(<result> <folder> <Pass> [EXCLUDE <words>] <element>...)
# Into list <result>, the sources in <folder>: one for each row of Hopper's catalogue of the pass
# (Forward), for these elements. EXCLUDE: without the rows whose names match.
function(fa3_catalogue_sources result folder Pass)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "EXCLUDE" "")
  fa3_read_catalogue(lines)
  set(sources)
  set(absent)
  set(before "namespace fa3::hopper {\n")
  set(after "}  // namespace fa3::hopper\n")
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
#include \"engine/hopper/instances/@pass@_entry.cuh\"
@before@@instances@@after@")
      list(APPEND sources ${source})
    endif()
  endforeach()
  if(absent)
    set(source ${folder}/no_${pass}_kernels.cu)
    file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
      "#include \"@PROJECT_SOURCE_DIR@/tests/cpp/engine/hopper/no_kernels.h\"
@before@@absent@@after@")
    list(APPEND sources ${source})
  endif()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# The lines of Hopper's catalogue (kernels/list.cpp), which are read from its object: for another
# machine too. tools/kernel_code.py reads them in generated/engine/hopper/kernels.txt.
function(fa3_read_catalogue result)
  get_property(lines GLOBAL PROPERTY fa3_catalogue)
  if(NOT lines)
    set(hopper ${PROJECT_SOURCE_DIR}/src/engine/hopper)
    file(GLOB parts ${hopper}/kernels/*.* ${hopper}/config/*.h)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${parts})
    set(folder ${PROJECT_BINARY_DIR}/generated/engine/hopper)
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    try_compile(compiled ${PROJECT_BINARY_DIR}/CMakeFiles/kernels ${hopper}/kernels/list.cpp
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
    set_property(GLOBAL PROPERTY fa3_catalogue "${lines}")
  endif()
  set(${result} "${lines}" PARENT_SCOPE)
endfunction()

# ---- Kernels that stand in tables: of Hopper's backward, and of the ampere engine ----

# fa3_kernel_entries(<result> <folder> <pass> <table> <entry>
#   [ENGINE <engine>] [EACH_KIND] <kind>...)
# Into list <result>, the sources in <folder>: they include <entry>.cuh and instantiate <pass>Kernel
# for each instance of <table> and each kind, the template arguments after the row. <table> lies in
# src/engine/<engine>/tables, <entry> in instances; hopper, if none is named. EACH_KIND: each kind
# of a row has a source of its own, which is what a driver compiles of PTX at once.
function(fa3_kernel_entries result folder pass table entry)
  cmake_parse_arguments(PARSE_ARGV 5 arg "EACH_KIND" "ENGINE" "")
  set(engine hopper)
  if(arg_ENGINE)
    set(engine ${arg_ENGINE})
  endif()
  set(table ${PROJECT_SOURCE_DIR}/src/engine/${engine}/tables/${table})
  set(instance KernelInstance)
  if(pass STREQUAL "Backward")
    set(instance BackwardInstance)
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  file(STRINGS ${table} rows REGEX "^    ${instance}{")
  list(LENGTH rows num_rows)
  math(EXPR last_row "${num_rows} - 1")

  # Elements with kernels: those of the first row, and those of the others.
  set(elements_of_first Fp16 Bf16)
  if(FA3_KERNELS STREQUAL "BF16" OR FA3_KERNELS STREQUAL "SAMPLE")
    set(elements_of_first Bf16)
  elseif(NOT FA3_KERNELS)
    set(elements_of_first)
  endif()
  set(elements_of_others ${elements_of_first})
  if(FA3_KERNELS STREQUAL "SAMPLE")
    set(elements_of_others)
  endif()

  set(sources)
  set(instances)
  # Instantiates what `instances` has, of `header`.
  macro(write_source name)
    file(CONFIGURE OUTPUT ${folder}/${name}.cu @ONLY CONTENT [[
#include "@header@"
namespace fa3::@engine@ {
@instances@}  // namespace fa3::@engine@
]])
    list(APPEND sources ${folder}/${name}.cu)
    set(instances)
  endmacro()

  set(absent)
  set(header engine/${engine}/instances/${entry}.cuh)
  set(elements ${elements_of_first})
  foreach(row RANGE ${last_row})
    foreach(element Fp16 Bf16)
      set(kinds ${arg_UNPARSED_ARGUMENTS})
      list(FILTER kinds INCLUDE REGEX k${element})
      string(TOLOWER ${entry}_${row}_${element} name)
      set(kind_number 0)
      foreach(kind IN LISTS kinds)
        set(instance "template ${pass}Kernel ${entry}<${row}, ${kind}>();\n")
        if(NOT element IN_LIST elements)
          string(APPEND absent "${instance}")
          continue()
        endif()
        string(APPEND instances "${instance}")
        if(arg_EACH_KIND)
          math(EXPR kind_number "${kind_number} + 1")
          write_source(${name}_${kind_number})
        endif()
      endforeach()
      if(instances)
        write_source(${name})
      endif()
    endforeach()
    set(elements ${elements_of_others})
  endforeach()

  if(absent)
    set(header ${PROJECT_SOURCE_DIR}/tests/cpp/engine/${engine}/no_kernels.h)
    set(instances "${absent}")
    write_source(no_${entry})
  endif()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# Into list <result>, the kinds of kernels of these elements: each in every Variant of
# config/sm90.h.
function(fa3_kernel_kinds result)
  set(kinds)
  foreach(element ${ARGN})
    foreach(variant kDense kGeneral kCapped)
      list(APPEND kinds "Element::${element}, Variant::${variant}")
    endforeach()
  endforeach()
  set(${result} ${kinds} PARENT_SCOPE)
endfunction()
