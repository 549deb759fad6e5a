# A generated source for each row of a table of kernels and each element, so that they compile
# side by side, and one for all entries that FA3_KERNELS leaves without a kernel.

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
# forward_config.h.
function(fa3_kernel_kinds result)
  set(kinds)
  foreach(element ${ARGN})
    foreach(variant kDense kGeneral kCapped)
      list(APPEND kinds "Element::${element}, Variant::${variant}")
    endforeach()
  endforeach()
  set(${result} ${kinds} PARENT_SCOPE)
endfunction()
