/* quern/device.h -- devices: what programs are compiled for and run on
** A device has a kind and an ordinal, such as "cuda:1", the second GPU that the driver of NVIDIA shows. What it has
** opened, such as a context of its driver, queues and handles of libraries, belongs to it alone: several devices of a
** process work side by side, from several threads. A name stands wherever a device is asked for by text, as in
** quern_program_options.device:
**   "cpu", "cuda", "opencl", "interp", "null"   the first of that kind
**   "cuda:1"                                    one of several
**   "auto"                                      the best there is: a GPU by CUDA, one by OpenCL, else the CPU,
**                                               which the log then says once
**   "" or NULL                                  the CPU
*/
#ifndef QUERN_DEVICE_H
#define QUERN_DEVICE_H
#include <stdbool.h>
#include <stdint.h>

#include "quern/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quern_device quern_device;

/* The device of a name, which must be there: its driver is loaded and the device opened; the error names what is
** missing. Of "auto" that is the CPU nothing is logged: quern_last_error gives the reason. Opening it again gives the same
** pointer. Each open has its quern_device_free. */
QUERN_API quern_status quern_device_open(quern_device **device, const char *name) QUERN_NODISCARD;
/* Gives a handle back; NULL is fine. With its last handle and its last program a device closes what it has opened, such
** as its context of the driver. One that was asked for by its name, as in quern_program_options.device, stays open
** until the process ends, since programs come and go. */
QUERN_API void quern_device_free(quern_device *device);

/* The kinds by number: "cpu", "interp" (the kernel interpreter), "null" (compiles, runs nothing), "cuda", "opencl";
** NULL after the last. */
QUERN_API const char *quern_device_kind(size_t i);
/* How many devices of a kind there are; 0: none, and quern_last_error gives the reason. NULL: of all kinds together. Of
** "interp" and "null" any number could be made; all of a kind are alike. */
QUERN_API size_t quern_device_count(const char *kind);

typedef struct quern_device_info {
  size_t size;        /* of this struct */
  const char *kind;   /* "cuda" */
  const char *name;   /* that opens it: "cuda" of the first of its kind, else "cuda:1" */
  int ordinal;        /* 0 */
  const char *model;  /* as its driver names it, as long as the handle is: "NVIDIA H200"; "": it has no name */
  const char *target; /* what code is made for: "avx512", "sm_90" */
  const char *detail; /* a line for people: compiler, driver, libraries; until the thread's next call */
  int threads;        /* by default */
  int64_t caches[3];  /* bytes of L1 and L2 of a core, and of L3 */
  int64_t total_bytes, free_bytes; /* of its memory; 0: its driver does not tell */
  bool gpu;                        /* kernels are made for a GPU */
  bool own_memory;                 /* it has memory of its own: the host's pointers are not its */
  bool simulated;                  /* it is no hardware: of kind "interp" or "null" */
  bool tensor_cores;               /* products of matrices by tensor cores */
  bool bf16;                       /* it multiplies bf16 */
  bool f64;                        /* it computes in f64 */
  bool cublaslt, cudnn;            /* libraries that were found for it */
} quern_device_info;
/* Fills *info, whose size is set. Of a GPU its libraries are loaded, and its memory is asked about. */
QUERN_API quern_status quern_device_get_info(const quern_device *device, quern_device_info *info) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
