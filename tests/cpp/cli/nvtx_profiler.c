/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest profiler: NVTX loads it (NVTX_INJECTION64_PATH) and it prints every range of a
 * domain. */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>

static const char* names[16];
static size_t num_names;

static nvtxDomainHandle_t create(const char* name) {
  if (num_names == sizeof names / sizeof *names) return NULL;
  names[num_names++] = name;
  return (nvtxDomainHandle_t)&names[num_names - 1];
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  return fprintf(stderr, "begin %s: %s\n", *(const char**)domain, attributes->message.ascii);
}

static int pop(nvtxDomainHandle_t domain) {
  return fprintf(stderr, "end %s\n", *(const char**)domain);
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t ask) {
  const NvtxExportTableCallbacks* tables = ask(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned int size = 0;
  if (!tables || !tables->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
