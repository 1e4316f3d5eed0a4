/* SPDX-License-Identifier: Apache-2.0 */
/* c_forward MODEL: the first layer of a checkpoint, or of a packed folder, on the CPU: open, plan,
 * prepare, call. Prints a checksum of the result's bits, which is the same on every machine. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moxie/moxie.h"

enum { TOKENS = 5 };

static void require(int status) {
  if (status == MOXIE_STATUS_OK) return;
  fprintf(stderr, "%s\n", moxie_last_error());
  exit(status);
}

static void* allocate(uint64_t count, size_t size) {
  void* memory = calloc(count, size);
  if (memory == NULL) exit(MOXIE_STATUS_ENVIRONMENT);
  return memory;
}

/* FNV-1a over the bits; exits for values that can not be the layer's. */
static uint64_t checksum(const float* y, uint64_t count) {
  uint64_t hash = UINT64_C(14695981039346656037);
  double sum = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, &y[i], sizeof bits);
    hash = (hash ^ bits) * UINT64_C(1099511628211);
    sum += fabs(y[i]);
  }
  if (isfinite(sum) && sum > 0) return hash;
  fprintf(stderr, "the result is no number, or all 0\n");
  exit(MOXIE_STATUS_VERDICT);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s MODEL\n", argv[0]);
    return MOXIE_STATUS_USAGE;
  }
  moxie_model* model = NULL;
  require(moxie_open(argv[1], &model));
  moxie_model_info info = {.struct_size = sizeof info};
  require(moxie_describe_model(model, &info));

  moxie_plan* plan = NULL;
  require(moxie_make_plan(model, &(moxie_plan_options){.struct_size = sizeof(moxie_plan_options)},
                          &plan));
  moxie_prepare_options options = {.struct_size = sizeof options,
                                   .reduction = MOXIE_REDUCTION_LAYER};
  require(moxie_model_layer(model, 0, &options.layer));
  moxie_layer* layer = NULL;
  require(moxie_prepare(plan, &options, &layer));
  moxie_plan_destroy(plan); /* the layer stays */
  moxie_model_destroy(model);

  float* x = allocate(TOKENS * info.hidden, sizeof *x);
  float* y = allocate(TOKENS * info.hidden, sizeof *y);
  int32_t* ids = allocate(TOKENS * info.top_k, sizeof *ids);
  float* weights = allocate(TOKENS * info.top_k, sizeof *weights);
  for (uint64_t i = 0; i < TOKENS * info.hidden; ++i) x[i] = (float)(i * 37 % 101) / 64.0F - 0.75F;
  for (uint64_t i = 0; i < TOKENS * info.top_k; ++i) {
    ids[i] = (int32_t)(i % info.experts);
    weights[i] = 1.0F / (float)info.top_k;
  }
  uint32_t flags = 0;
  moxie_forward_args args = {.struct_size = sizeof args,
                             .x_dtype = MOXIE_DTYPE_F32,
                             .y_dtype = MOXIE_DTYPE_F32,
                             .tokens = TOKENS,
                             .x = x,
                             .x_row_stride = info.hidden,
                             .topk_ids = ids,
                             .topk_weights = weights,
                             .y = y,
                             .y_row_stride = info.hidden,
                             .flags = &flags};
  require(moxie_workspace_size(layer, TOKENS, &args.workspace_bytes));
  args.workspace = allocate(args.workspace_bytes, 1);
  require(moxie_forward(layer, &args));
  printf("moxie %s: layer %d, %d tokens, flags %u, checksum %016llx\n", moxie_version(),
         (int)options.layer, TOKENS, (unsigned)flags,
         (unsigned long long)checksum(y, TOKENS * info.hidden));

  moxie_layer_destroy(layer);
  free(args.workspace);
  free(weights), free(ids), free(y), free(x);
  return MOXIE_STATUS_OK;
}
