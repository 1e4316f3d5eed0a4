/* SPDX-License-Identifier: Apache-2.0 */
/* graph_replay MODEL [TARGET]: captures one call of a layer into a CUDA graph, replays it with
 * other routing, and compares every result with an eager call, bit for bit. Exit 77: no such GPU
 * here. */
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moxie/moxie.h"

enum { TOKENS = 8, ROUTINGS = 5, CALLS = 200 };

static void require(int status) {
  if (status == MOXIE_STATUS_OK) return;
  fprintf(stderr, "%s\n", moxie_last_error());
  exit(strncmp(moxie_last_error(), "MOXIE-E004", 10) == 0 ? 77 : status);
}

static void cuda(cudaError_t code) {
  if (code == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(code));
  exit(MOXIE_STATUS_ENVIRONMENT);
}

/* Managed, so that the host can write and compare in place; device memory does as well. */
static void* allocate(uint64_t bytes) {
  void* memory = NULL;
  cuda(cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal));
  return memset(memory, 0, bytes);
}

/* Spread, all on one expert, with masked slots, half of the tokens only, nobody anywhere. */
static int32_t id_of(int routing, uint64_t slot, const moxie_model_info* info) {
  const int masked = routing == 4 || (routing == 3 && slot / info->top_k >= TOKENS / 2) ||
                     (routing == 2 && slot % 3 == 0);
  return masked ? -1 : routing == 1 ? 1 : (int32_t)((slot * 7 + (uint64_t)routing) % info->experts);
}

/* Microseconds of a call on average; without a graph the call is eager. */
static double call(const moxie_layer* layer, const moxie_forward_args* args, cudaGraphExec_t graph,
                   int times) {
  cudaEvent_t begin, end;
  float ms = 0;
  cuda(cudaEventCreate(&begin));
  cuda(cudaEventCreate(&end));
  cuda(cudaEventRecord(begin, args->stream));
  for (int i = 0; i < times; ++i) {
    if (graph == NULL) require(moxie_forward(layer, args));
    if (graph != NULL) cuda(cudaGraphLaunch(graph, args->stream));
  }
  cuda(cudaEventRecord(end, args->stream));
  cuda(cudaEventSynchronize(end));
  cuda(cudaEventElapsedTime(&ms, begin, end));
  return ms * 1e3 / times;
}

int main(int argc, char** argv) {
  moxie_model* model = NULL;
  moxie_plan* plan = NULL;
  moxie_layer* layer = NULL;
  moxie_model_info info = {.struct_size = sizeof info};
  moxie_plan_options wanted = {.struct_size = sizeof wanted, .target = argc > 2 ? argv[2] : "sm90"};
  moxie_prepare_options options = {.struct_size = sizeof options,
                                   .reduction = MOXIE_REDUCTION_LAYER};
  require(moxie_open(argc > 1 ? argv[1] : ".", &model));
  require(moxie_describe_model(model, &info));
  require(moxie_model_layer(model, 0, &options.layer));
  require(moxie_make_plan(model, &wanted, &plan));
  require(moxie_prepare(plan, &options, &layer));

  const uint64_t values = TOKENS * info.hidden, slots = TOKENS * info.top_k;
  float *x = allocate(values * sizeof *x), *weights = allocate(slots * sizeof *weights);
  float *y = allocate(values * sizeof *y), *eager = allocate(ROUTINGS * values * sizeof *eager);
  int32_t* ids = allocate(slots * sizeof *ids);
  for (uint64_t i = 0; i < values; ++i) x[i] = (float)(i * 37 % 101) / 64.0F - 0.75F;
  for (uint64_t i = 0; i < slots; ++i) weights[i] = 1.0F / (float)info.top_k;
  moxie_forward_args args = {.struct_size = sizeof args, .tokens = TOKENS};
  args.x = x, args.x_dtype = MOXIE_DTYPE_F32, args.x_row_stride = info.hidden;
  args.y = y, args.y_dtype = MOXIE_DTYPE_F32, args.y_row_stride = info.hidden;
  args.topk_ids = ids, args.topk_weights = weights, args.flags = allocate(sizeof(uint32_t));
  require(moxie_workspace_size(layer, TOKENS, &args.workspace_bytes));
  args.workspace = allocate(args.workspace_bytes);
  cudaStream_t stream;
  cudaGraph_t captured;
  cudaGraphExec_t graph;
  cuda(cudaStreamCreate(&stream));
  args.stream = stream;

  /* A replay reads and writes where the captured call did, whatever lies there by then. */
  cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  require(moxie_forward(layer, &args));
  cuda(cudaStreamEndCapture(stream, &captured));
  cuda(cudaGraphInstantiate(&graph, captured, 0));
  int wrong = 0;
  for (int routing = ROUTINGS - 1; routing >= 0; --routing) {
    float* result = eager + (uint64_t)routing * values;
    for (uint64_t slot = 0; slot < slots; ++slot) ids[slot] = id_of(routing, slot, &info);
    call(layer, &args, NULL, 1);
    memcpy(result, y, values * sizeof *y);
    memset(y, 0xFF, values * sizeof *y); /* NaN */
    call(layer, &args, graph, 1);
    wrong += memcmp(result, y, values * sizeof *y) != 0;
    /* Another routing gives another result, or nothing was compared. */
    if (routing + 1 < ROUTINGS) wrong += memcmp(result, result + values, values * sizeof *y) == 0;
  }
  const double eager_us = call(layer, &args, NULL, CALLS);
  printf("%d routings: %d wrong; eager %.1f us, replayed %.1f us a call\n", ROUTINGS, wrong,
         eager_us, call(layer, &args, graph, CALLS));
  moxie_layer_destroy(layer);
  moxie_plan_destroy(plan);
  moxie_model_destroy(model);
  return wrong == 0 ? MOXIE_STATUS_OK : MOXIE_STATUS_VERDICT;
}
