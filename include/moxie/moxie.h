/* SPDX-License-Identifier: Apache-2.0 */
/* moxie's C ABI: open a checkpoint, plan, prepare a layer, run it. The contract (ownership,
 * threads, errors, versions, streams and graphs) is docs/abi.md.
 *
 * Functions return a moxie_status. Nothing else is reported by a return value, and no C++ exception
 * leaves the library. A pointer may be null only where its comment says so. */
#ifndef MOXIE_MOXIE_H
#define MOXIE_MOXIE_H

#include <stdint.h>

#ifndef MOXIE_API
#if defined(__GNUC__) && defined(MOXIE_SHARED_BUILD)
#define MOXIE_API __attribute__((visibility("default")))
#else
#define MOXIE_API
#endif
#endif

#ifdef __cplusplus
#define MOXIE_NOEXCEPT noexcept
extern "C" {
#else
#define MOXIE_NOEXCEPT
#endif

/* What a function returns. The values are the exit codes of the command of the same name. */
enum moxie_status {
  MOXIE_STATUS_OK = 0,
  MOXIE_STATUS_VERDICT = 1,     /* the work is done and the answer is "no" */
  MOXIE_STATUS_USAGE = 2,       /* an argument or an option is wrong */
  MOXIE_STATUS_INPUT = 3,       /* bytes or headers of a file are wrong or missing */
  MOXIE_STATUS_UNSUPPORTED = 4, /* understood but not possible */
  MOXIE_STATUS_ENVIRONMENT = 5, /* the machine failed: disk, memory, device */
  MOXIE_STATUS_INTERNAL = 70    /* a bug in moxie */
};

/* Element types of activations. 0 is none of them, so that a field left out is refused. */
enum moxie_dtype {
  MOXIE_DTYPE_F32 = 1,
  MOXIE_DTYPE_BF16 = 2,
  MOXIE_DTYPE_F8_E4M3 = 3 /* x of moxie_forward_rows() alone, with x_scales */
};

/* Who sums the partial results of the ranks. */
enum moxie_reduction {
  MOXIE_REDUCTION_LAYER = 1, /* the layer holds every rank of the plan and returns the sum */
  MOXIE_REDUCTION_CALLER = 2 /* the layer holds one rank and returns its partial sum */
};

/* Bits that a call sets in its flags word and never clears. */
enum moxie_flag {
  MOXIE_FLAG_BAD_EXPERT_ID = 1, /* an id outside [0, experts) other than -1; its slot was skipped */
  MOXIE_FLAG_BAD_ROW_COUNT = 8  /* rows of an expert below 0 or beyond their room; the latter were
                                   skipped */
};

/* A checkpoint or a packed folder, opened. Immutable. */
typedef struct moxie_model moxie_model;
/* Who holds what. Immutable; keeps its model's data alive. */
typedef struct moxie_plan moxie_plan;
/* The experts of one layer, loaded and bound to the planned kernel. Keeps what it needs alive. */
typedef struct moxie_layer moxie_layer;

/* "0.1.0"; never fails, lives as long as the library. */
MOXIE_API const char* moxie_version(void) MOXIE_NOEXCEPT;

/* What this thread's last failing call was refused for, one finding a line: "MOXIE-P001 error:
 * message [where]; expected ..., got ...; hint". Empty before the first; a call that succeeds
 * leaves it. The text is valid until the next failing call of this thread. */
MOXIE_API const char* moxie_last_error(void) MOXIE_NOEXCEPT;

/* Opens a folder or file that `moxie inspect` takes, or a folder that `moxie pack` wrote. Headers
 * alone are read. `*model` is null on failure; moxie_model_destroy() ends it. */
MOXIE_API int moxie_open(const char* path, moxie_model** model) MOXIE_NOEXCEPT;
/* `model` may be null. Plans and layers made from it stay valid. */
MOXIE_API void moxie_model_destroy(moxie_model* model) MOXIE_NOEXCEPT;

/* What a call needs to know of a model. */
typedef struct moxie_model_info {
  uint32_t struct_size; /* sizeof(moxie_model_info), set by the caller */
  uint32_t packed;      /* 1: a folder of packed ranks; 0: a checkpoint */
  uint64_t hidden;      /* width that the experts see */
  uint64_t inter;       /* their intermediate width, one of gate and up */
  uint64_t experts;     /* of a layer */
  uint64_t top_k;       /* the config's own */
  uint64_t layers;      /* that can be prepared from what is here; see moxie_model_layer() */
} moxie_model_info;
MOXIE_API int moxie_describe_model(const moxie_model* model, moxie_model_info* info) MOXIE_NOEXCEPT;
/* The number of the index-th layer that can be prepared, ascending, index below `layers`. */
MOXIE_API int moxie_model_layer(const moxie_model* model, uint64_t index,
                                int32_t* layer) MOXIE_NOEXCEPT;

/* A field that is 0 or null is not given: a checkpoint is then planned with the default, and a
 * packed folder with what it was packed for. A packed folder refuses a field that differs. */
typedef struct moxie_plan_options {
  uint32_t struct_size;   /* sizeof(moxie_plan_options) */
  uint32_t tp;            /* ranks that share the intermediate axis, 1 to 64; default 1 */
  uint32_t ep;            /* groups of ranks that share the experts; default 1 */
  uint32_t reserved;      /* 0 */
  const char* target;     /* "cpu", "sm90", "sm100", "sm120"; default "cpu" */
  const char* act_format; /* "bf16", "fp8", "mxfp8", "nvfp4", ...; default "bf16" */
  const char* format;     /* "mxfp4", "nvfp4", where config and tensors leave it open */
  const char* act_scale;  /* of act_format nvfp4: "checkpoint", "warmup", "dynamic", "row" */
  double act_margin;      /* of act_scale warmup, from 1 up; default 8 */
  uint64_t kernel_align;  /* a rank's width is padded to a multiple of this too */
} moxie_plan_options;

/* Decides; reads no tensor, needs no device. `*plan` is null on failure; moxie_plan_destroy() ends
 * it. */
MOXIE_API int moxie_make_plan(const moxie_model* model, const moxie_plan_options* options,
                              moxie_plan** plan) MOXIE_NOEXCEPT;
/* `plan` may be null. Layers made from it stay valid. */
MOXIE_API void moxie_plan_destroy(moxie_plan* plan) MOXIE_NOEXCEPT;

/* The document of `moxie plan --json` with its warnings and notes in "findings". `*text` belongs to
 * the plan and lives as long as it. */
MOXIE_API int moxie_plan_json(const moxie_plan* plan, const char** text) MOXIE_NOEXCEPT;

typedef struct moxie_plan_info {
  uint32_t struct_size;  /* sizeof(moxie_plan_info), set by the caller */
  uint32_t ranks;        /* tp * ep */
  uint64_t hidden;       /* as the model's */
  uint64_t experts;      /* as the model's */
  uint64_t kernel_inter; /* intermediate width that a rank's kernel reads */
  uint64_t blob_bytes;   /* of one packed expert of a rank */
} moxie_plan_info;
MOXIE_API int moxie_describe_plan(const moxie_plan* plan, moxie_plan_info* info) MOXIE_NOEXCEPT;

typedef struct moxie_rank_info {
  uint32_t struct_size; /* sizeof(moxie_rank_info), set by the caller */
  uint32_t tp_rank;
  uint32_t ep_rank;
  uint32_t reserved;     /* written 0 */
  uint64_t first_expert; /* global ids [first_expert, end_expert) */
  uint64_t end_expert;
  uint64_t bytes; /* of one layer's packed experts */
} moxie_rank_info;
/* `rank` = ep_rank * tp + tp_rank. */
MOXIE_API int moxie_describe_rank(const moxie_plan* plan, uint32_t rank,
                                  moxie_rank_info* info) MOXIE_NOEXCEPT;

typedef struct moxie_prepare_options {
  uint32_t struct_size; /* sizeof(moxie_prepare_options) */
  int32_t layer;        /* its number, as in moxie_model_layer() */
  uint32_t reduction;   /* enum moxie_reduction */
  uint32_t rank;        /* the one to hold where the caller sums; 0 otherwise */
  uint32_t threads;     /* CPU: threads of a call; 0: all that the process may use */
  uint32_t max_sms;     /* GPU: multiprocessors that a call may fill; 0: all */
  uint64_t top_k;       /* experts of a token; 0: the config's */
} moxie_prepare_options;

/* Packs the layer's experts from the checkpoint or loads them from the packed folder, checks them,
 * and binds them; for a GPU target into the memory of the device that is current on this thread.
 * `*layer` is null on failure; moxie_layer_destroy() ends it. */
MOXIE_API int moxie_prepare(const moxie_plan* plan, const moxie_prepare_options* options,
                            moxie_layer** layer) MOXIE_NOEXCEPT;
/* `layer` may be null. No call may run any more, nor a graph that holds one. */
MOXIE_API void moxie_layer_destroy(moxie_layer* layer) MOXIE_NOEXCEPT;

/* Bytes of workspace that a call with up to `tokens` tokens needs. Grows with tokens. */
MOXIE_API int moxie_workspace_size(const moxie_layer* layer, uint64_t tokens,
                                   uint64_t* bytes) MOXIE_NOEXCEPT;

/* One call's data, all owned by the caller: host memory on the CPU, device memory on a GPU. */
typedef struct moxie_forward_args {
  uint32_t struct_size;      /* sizeof(moxie_forward_args) */
  uint32_t x_dtype;          /* enum moxie_dtype */
  uint32_t y_dtype;          /* enum moxie_dtype */
  uint32_t reserved;         /* 0 */
  uint64_t tokens;           /* 0 is legal; x, y, topk_* may then be null */
  const void* x;             /* [tokens, hidden] */
  uint64_t x_row_stride;     /* elements from one row to the next, at least hidden */
  const int32_t* topk_ids;   /* [tokens, top_k] global expert ids; -1 masks a slot */
  const float* topk_weights; /* [tokens, top_k] final router weights */
  void* y;                   /* [tokens, hidden]; every element is written */
  uint64_t y_row_stride;     /* elements, at least hidden */
  uint32_t* flags;           /* one word; see enum moxie_flag */
  void* workspace;           /* any contents, any alignment; one call at a time */
  uint64_t workspace_bytes;  /* at least moxie_workspace_size(tokens) */
  void* stream;              /* null on the CPU; on a GPU a cudaStream_t, null being the default */
} moxie_forward_args;

/* y = sum over a token's slots of weight * expert(x). Allocates nothing, takes no lock, keeps no
 * state. On a GPU the work is put into the stream: the call waits for nothing and can be captured.
 * Unless it returns MOXIE_STATUS_OK, nothing was written; on a GPU MOXIE_STATUS_ENVIRONMENT says
 * that the device did not take all of the work, and y is then undefined. */
MOXIE_API int moxie_forward(const moxie_layer* layer,
                            const moxie_forward_args* args) MOXIE_NOEXCEPT;

/* Bytes of workspace that moxie_forward_rows() needs for so many rows, those of no expert
 * included. For a layer of one rank. */
MOXIE_API int moxie_rows_workspace_size(const moxie_layer* layer, uint64_t rows,
                                        uint64_t* bytes) MOXIE_NOEXCEPT;

/* The same for rows of x in this type, an enum moxie_dtype: MOXIE_DTYPE_F8_E4M3 needs more. */
MOXIE_API int moxie_rows_workspace_size_of(const moxie_layer* layer, uint64_t rows,
                                           uint32_t x_dtype, uint64_t* bytes) MOXIE_NOEXCEPT;

/* A call behind somebody else's dispatch: rows that were brought to one rank, sorted by its experts
 * in slot order. Memory as in moxie_forward_args. */
typedef struct moxie_rows_args {
  uint32_t struct_size;          /* sizeof(moxie_rows_args) */
  uint32_t x_dtype;              /* enum moxie_dtype */
  uint32_t y_dtype;              /* enum moxie_dtype */
  uint32_t reserved;             /* 0 */
  uint64_t rows;                 /* 0 is legal; x and y may then be null */
  const void* x;                 /* [rows, hidden]; rows of no expert may hold anything */
  uint64_t x_row_stride;         /* elements, at least hidden */
  const int32_t* rows_of_expert; /* [experts of the rank] */
  uint64_t rows_apart;           /* from one expert's first row to the next one's; 0: each begins
                                    where the one before it ends */
  const float* row_scales;       /* [rows] of the result; null: rows are not weighted */
  void* y;                       /* [rows, hidden]; rows of no expert become 0 */
  uint64_t y_row_stride;         /* elements, at least hidden */
  uint32_t* flags;               /* one word; see enum moxie_flag */
  void* workspace;               /* any contents, any alignment; one call at a time */
  uint64_t workspace_bytes;      /* at least moxie_rows_workspace_size_of(rows, x_dtype) */
  void* stream;                  /* as in moxie_forward_args */
  /* Of x in MOXIE_DTYPE_F8_E4M3, null with other types: [rows, hidden / 128, rounded up], the
   * values of 128 columns of a row being code * scale, rounded to f32. Strides in floats: to the
   * next row, to the next 128 columns, both at least 1; and, where rows_apart is not 0, from an
   * expert's first row to the next one's, 0 being rows_apart * x_scale_row_stride. */
  const float* x_scales;
  uint64_t x_scale_row_stride;
  uint64_t x_scale_block_stride;
  uint64_t x_scale_expert_stride;
} moxie_rows_args;

/* y = scale * expert(x), row by row, for a layer of one rank. Counts are read where they lie: a
 * captured call serves any. Everything else as moxie_forward(). */
MOXIE_API int moxie_forward_rows(const moxie_layer* layer,
                                 const moxie_rows_args* args) MOXIE_NOEXCEPT;

/* For plans with act_scale "warmup", and needed there before moxie_forward(): measures these inputs
 * and freezes the scales that follow. y is given and not written; the inputs are complete, whatever
 * the stream. Waits, allocates, and no other call of the layer may run. `*fallback_ranks`, which
 * may be null, becomes the number of ranks held whose scales stay at 1/2688, because they saw no
 * valid slot or values that are of no use. */
MOXIE_API int moxie_warm_up(moxie_layer* layer, const moxie_forward_args* args,
                            uint32_t* fallback_ranks) MOXIE_NOEXCEPT;

/* Packs one expert of one rank into host memory: `bytes` is blob_bytes of the plan. From a packed
 * folder the rank's whole layer is read for it. */
MOXIE_API int moxie_pack_expert(const moxie_plan* plan, uint32_t rank, int32_t layer,
                                uint64_t expert, void* blob, uint64_t bytes) MOXIE_NOEXCEPT;

/* Replaces one expert of a rank held by another blob (host memory, as moxie_pack_expert() writes
 * it), in place: graphs stay valid. A blob that is refused changes nothing. No call may run
 * meanwhile. */
MOXIE_API int moxie_reload(moxie_layer* layer, uint32_t rank, uint64_t expert, const void* blob,
                           uint64_t bytes) MOXIE_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MOXIE_MOXIE_H */
