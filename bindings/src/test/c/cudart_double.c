/*
 * A stand-in for libcudart, for tests on machines without a GPU. "Device" memory is host memory, so a
 * test can read it; copies copy, kernels do not run: a launch is recorded with its arguments. CUDA knows
 * from an image how long these are; here an image may say "arguments of N bytes", and else none are recorded.
 *
 * Every call that returns a status is counted and named; double_fail_at makes one of them fail. A
 * call that frees, when told to fail, frees all the same, as CUDA does when it passes on an earlier fault.
 * double_hold_call makes one wait for double_let_go, while other threads go on.
 *
 * gcc -shared -fPIC -Wl,-soname,libcudart.so.13 -o libcudart.so.13 cudart_double.c
 * -DDOUBLE_RUNTIME=, -DDOUBLE_DRIVER=, -DDOUBLE_DEVICES=, -DDOUBLE_COUNT_STATUS= build one that refuses.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DOUBLE_RUNTIME
#define DOUBLE_RUNTIME 13000
#endif
#ifndef DOUBLE_DRIVER
#define DOUBLE_DRIVER 13000
#endif
#ifndef DOUBLE_DEVICES
#define DOUBLE_DEVICES 1
#endif
#ifndef DOUBLE_COUNT_STATUS
#define DOUBLE_COUNT_STATUS 0
#endif
#define API __attribute__((visibility("default")))

typedef enum { PINNED, DEVICE, REGISTERED, STREAM, EVENT, LIBRARY, GRAPH, EXECUTABLE, NUM_KINDS } Kind;
static const char *const kKindNames[] = {"pinned", "device", "registered", "stream", "event", "library", "graph", "executable"};

enum { SUCCESS = 0, INVALID_VALUE = 1, MEMORY_ALLOCATION = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
       INVALID_HANDLE = 400, SYMBOL_NOT_FOUND = 500, CAPTURE_UNSUPPORTED = 900,
       ILLEGAL_STATE = 401 };
enum { MAX_CALLS = 65536, MAX_LAUNCHES = 4096, MAX_ARGUMENT_BYTES = 4096, NAME_BYTES = 256 };

/* One live thing. `at` is its handle: the memory itself, or this object's own address.
 * `bytes`: of memory; of the arguments that a library's kernels take; launches that a graph notes. */
typedef struct Object {
  Kind kind;
  char *at;
  size_t bytes;
  struct Object *next;
} Object;

/* Kernels live as long as the process: a handle kept too long is found by its library being gone. */
typedef struct Kernel {
  char name[NAME_BYTES];
  void *library;
  size_t argument_bytes;
  int max_dynamic_shared;
  struct Kernel *next;
} Kernel;

typedef struct {
  const Kernel *kernel;
  int32_t grid[3], block[3];
  int64_t shared_bytes, stream;
  int32_t cluster, early;
  _Alignas(64) unsigned char arguments[MAX_ARGUMENT_BYTES];
} Launch;

typedef struct { unsigned x, y, z; } Dim3;
typedef struct { int id; char padding[4]; union { Dim3 cluster; int early; char bytes[64]; } value; } LaunchAttribute;
typedef struct { Dim3 grid, block; size_t shared_bytes; void *stream;
                 const LaunchAttribute *attributes; unsigned num_attributes; } LaunchConfig;
typedef struct { int type, device; void *device_pointer, *host_pointer; long reserved[8]; } PointerAttributes;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static Object *objects;
static Kernel *kernels;
static Launch launches[MAX_LAUNCHES];
static const char *calls[MAX_CALLS];
static long num_calls, num_launches, fail_at;
static char fail_name[NAME_BYTES]; /* of the calls that fail_at counts; "": of all */
static long hold_at;
static char hold_name[NAME_BYTES];
static int held; /* whether a call waits */
static int fail_status, last_error, num_devices = DOUBLE_DEVICES, major = 9, minor = 0;
static int multiprocessors = 132, shared_per_block = 232448, l2_bytes = 50 << 20;
static size_t memory_bytes = (size_t)1 << 34;
static char device_name[NAME_BYTES] = "Test Double";
static void *capturing;      /* the stream whose work is noted, or NULL */
static long noted_launches;  /* by that stream */
static int old_driver;       /* one without tensor maps */
static int pool;             /* the default memory pool is its address */
static uint64_t pool_threshold;
static __thread int device;

static int note(int status) {
  if (status) last_error = status;
  return status;
}

/* Counts a call; the status it must fail with, or 0. Call with the mutex held. */
static int enter(const char *name) {
  if (num_calls < MAX_CALLS) calls[num_calls] = name;
  num_calls++;
  if (hold_at > 0 && !strcmp(name, hold_name) && --hold_at == 0)
    for (held = 1; held;) pthread_cond_wait(&let_go, &mutex);
  if (fail_at > 0 && (!*fail_name || !strcmp(name, fail_name)) && --fail_at == 0) return note(fail_status);
  return SUCCESS;
}

static Object **find(Kind kind, const void *at) {
  for (Object **o = &objects; *o; o = &(*o)->next)
    if ((*o)->kind == kind && (*o)->at == (const char *)at) return o;
  return NULL;
}

/* Whether [at, at + bytes) lies in memory that a device may touch. */
static Object *holder(const void *at, size_t bytes) {
  for (Object *o = objects; o; o = o->next)
    if (o->kind <= REGISTERED && (const char *)at >= o->at && (const char *)at + bytes <= o->at + o->bytes) return o;
  return NULL;
}

static size_t device_bytes(void) {
  size_t sum = 0;
  for (Object *o = objects; o; o = o->next) sum += o->kind == DEVICE ? o->bytes : 0;
  return sum;
}

static int add(Kind kind, void *at, size_t bytes, void **out) {
  Object *o = malloc(sizeof *o);
  *o = (Object){kind, at ? at : (void *)o, bytes, objects};
  objects = o;
  if (out) *out = o->at;
  return SUCCESS;
}

static int drop(Kind kind, const void *at) {
  Object **link = find(kind, at);
  if (!link) return note(kind <= REGISTERED ? INVALID_VALUE : INVALID_HANDLE);
  Object *o = *link;
  *link = o->next;
  if (kind <= DEVICE) free(o->at);
  free(o);
  return SUCCESS;
}

static int stream_ok(const void *stream) {
  return !stream || find(STREAM, stream) ? SUCCESS : note(INVALID_HANDLE);
}

/* What a capturing stream cannot note: waiting, and copies of memory that may be gone by the launch. */
static int capture_ok(void) { return capturing ? note(CAPTURE_UNSUPPORTED) : SUCCESS; }

static int memory(Kind kind, void **out, size_t bytes) {
  if (kind == DEVICE && device_bytes() + bytes > memory_bytes) return note(MEMORY_ALLOCATION);
  char *at = malloc(bytes);
  if (!at) return note(MEMORY_ALLOCATION);
  memset(at, 0xff, bytes); /* NaN in every floating type: nobody may rely on cleared memory */
  return add(kind, at, bytes, out);
}

/* A call: its name is logged, then `body` gives the status unless the call was told to fail. */
#define CALL(name, parameters, ...)             \
  API int name parameters {                     \
    pthread_mutex_lock(&mutex);                 \
    int status = enter(#name);                  \
    if (!status) status = (__VA_ARGS__);        \
    pthread_mutex_unlock(&mutex);               \
    return status;                              \
  }
/* A call that frees: it does so even when told to fail. */
#define RELEASE(name, parameters, body)         \
  API int name parameters {                     \
    pthread_mutex_lock(&mutex);                 \
    int told = enter(#name), status = (body);   \
    pthread_mutex_unlock(&mutex);               \
    return told ? told : status;                \
  }
#define PUT(out, value) (*(out) = (value), SUCCESS)

CALL(cudaRuntimeGetVersion, (int *out), PUT(out, DOUBLE_RUNTIME))
CALL(cudaDriverGetVersion, (int *out), PUT(out, DOUBLE_DRIVER))
CALL(cudaGetDeviceCount, (int *out), DOUBLE_COUNT_STATUS ? note(DOUBLE_COUNT_STATUS) : PUT(out, num_devices))
CALL(cudaSetDevice, (int d), d >= 0 && d < num_devices ? PUT(&device, d) : note(INVALID_DEVICE))
CALL(cudaGetDevice, (int *out), PUT(out, device))
CALL(cudaDeviceSynchronize, (void), capture_ok())
CALL(cudaDeviceGetDefaultMemPool, (void **out, int d), d >= 0 && d < num_devices ? PUT(out, &pool) : note(INVALID_DEVICE))
CALL(cudaMemPoolSetAttribute, (void *at, int id, const uint64_t *value), at == &pool && id == 4 ? PUT(&pool_threshold, *value) : note(INVALID_VALUE))

static int attribute(int *out, int id) {
  switch (id) {
    case 16: return PUT(out, multiprocessors);
    case 36: return PUT(out, 3201000);
    case 37: return PUT(out, 6144);
    case 38: return PUT(out, l2_bytes);
    case 39: return PUT(out, 2048);
    case 75: return PUT(out, major);
    case 76: return PUT(out, minor);
    case 81: return PUT(out, shared_per_block + 1024);
    case 97: return PUT(out, shared_per_block);
    case 91: case 99: case 113: case 115: return PUT(out, 1);
    default: return note(INVALID_VALUE);
  }
}
CALL(cudaDeviceGetAttribute, (int *out, int id, int d), d >= 0 && d < num_devices ? attribute(out, id) : note(INVALID_DEVICE))
CALL(cudaGetDeviceProperties, (void *out, int d), d >= 0 && d < num_devices ? (memcpy(out, device_name, NAME_BYTES), SUCCESS) : note(INVALID_DEVICE))
CALL(cudaMemGetInfo, (size_t *available, size_t *total), (*total = memory_bytes, PUT(available, memory_bytes - device_bytes())))

CALL(cudaMalloc, (void **out, size_t bytes), memory(DEVICE, out, bytes))
CALL(cudaMallocAsync, (void **out, size_t bytes, void *stream), stream_ok(stream) ? INVALID_HANDLE : memory(DEVICE, out, bytes))
CALL(cudaHostAlloc, (void **out, size_t bytes, unsigned flags), (void)flags, memory(PINNED, out, bytes))
RELEASE(cudaFree, (void *at), at ? drop(DEVICE, at) : SUCCESS)
RELEASE(cudaFreeAsync, (void *at, void *stream), stream_ok(stream) ? INVALID_HANDLE : drop(DEVICE, at))
RELEASE(cudaFreeHost, (void *at), drop(PINNED, at))
CALL(cudaHostRegister, (void *at, size_t bytes, unsigned flags), (void)flags, find(REGISTERED, at) ? note(712) : add(REGISTERED, at, bytes, NULL))
RELEASE(cudaHostUnregister, (void *at), drop(REGISTERED, at))
CALL(cudaHostGetDevicePointer, (void **out, void *at, unsigned flags), (void)flags, holder(at, 1) ? PUT(out, at) : note(INVALID_VALUE))

static int describe(PointerAttributes *out, const void *at) {
  Object *o = holder(at, 1);
  memset(out, 0, sizeof *out);
  out->type = !o ? 0 : o->kind == DEVICE ? 2 : 1;
  out->device = o ? 0 : -2;
  out->device_pointer = o ? (void *)at : NULL;
  out->host_pointer = o && o->kind == DEVICE ? NULL : (void *)at;
  return SUCCESS;
}
CALL(cudaPointerGetAttributes, (PointerAttributes *out, const void *at), describe(out, at))

/* kind: 0 host-host, 1 host-device, 2 device-host, 3 device-device; device sides must be live. */
static int copy(void *to, const void *from, size_t bytes, int kind) {
  if ((kind & 1) && !holder(to, bytes)) return note(INVALID_VALUE);
  if ((kind & 2) && !holder(from, bytes)) return note(INVALID_VALUE);
  memmove(to, from, bytes);
  return SUCCESS;
}
static int fill(void *to, int value, size_t bytes) {
  return holder(to, bytes) ? (memset(to, value, bytes), SUCCESS) : note(INVALID_VALUE);
}
CALL(cudaMemcpy, (void *to, const void *from, size_t bytes, int kind), capture_ok() ? CAPTURE_UNSUPPORTED : copy(to, from, bytes, kind))
CALL(cudaMemcpyAsync, (void *to, const void *from, size_t bytes, int kind, void *stream), stream_ok(stream) ? INVALID_HANDLE : stream && stream == capturing && (!holder(to, bytes) || !holder(from, bytes)) ? capture_ok() : copy(to, from, bytes, kind))
CALL(cudaMemset, (void *to, int value, size_t bytes), fill(to, value, bytes))
CALL(cudaMemsetAsync, (void *to, int value, size_t bytes, void *stream), stream_ok(stream) ? INVALID_HANDLE : fill(to, value, bytes))

static int handle_ok(Kind kind, const void *at) { return find(kind, at) ? SUCCESS : note(INVALID_HANDLE); }
CALL(cudaStreamCreateWithFlags, (void **out, unsigned flags), (void)flags, add(STREAM, NULL, 0, out))
RELEASE(cudaStreamDestroy, (void *stream), (stream == capturing ? (void)(capturing = NULL) : (void)0, drop(STREAM, stream)))
CALL(cudaStreamSynchronize, (void *stream), stream_ok(stream) ? INVALID_HANDLE : stream == capturing ? capture_ok() : SUCCESS)
CALL(cudaStreamWaitEvent, (void *stream, void *event, unsigned flags), (void)flags, stream_ok(stream) ? INVALID_HANDLE : handle_ok(EVENT, event))
CALL(cudaEventCreateWithFlags, (void **out, unsigned flags), (void)flags, add(EVENT, NULL, 0, out))
RELEASE(cudaEventDestroy, (void *event), drop(EVENT, event))
CALL(cudaEventRecord, (void *event, void *stream), stream_ok(stream) ? INVALID_HANDLE : handle_ok(EVENT, event))
CALL(cudaEventSynchronize, (void *event), handle_ok(EVENT, event))
CALL(cudaEventElapsedTime, (float *out, void *start, void *end), handle_ok(EVENT, start) || handle_ok(EVENT, end) ? INVALID_HANDLE : PUT(out, 1.5f))

static size_t argument_bytes(const char *code) {
  static const char kSays[] = "arguments of ";
  size_t bytes = strncmp(code, kSays, sizeof kSays - 1) ? 0 : strtoul(code + sizeof kSays - 1, NULL, 10);
  return bytes < MAX_ARGUMENT_BYTES ? bytes : MAX_ARGUMENT_BYTES;
}
/* Refuses an image of four zero bytes, as a stand-in for one that CUDA cannot read. */
static int load(void **out, const char *code) {
  return code[0] | code[1] | code[2] | code[3] ? add(LIBRARY, NULL, argument_bytes(code), out) : note(INVALID_IMAGE);
}
CALL(cudaLibraryLoadData, (void **out, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f), (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, load(out, code))
RELEASE(cudaLibraryUnload, (void *library), drop(LIBRARY, library))

/* Every name is there, but for those that begin with "missing". */
static int kernel(void **out, void *library, const char *name) {
  if (handle_ok(LIBRARY, library)) return INVALID_HANDLE;
  if (!strncmp(name, "missing", 7)) return note(SYMBOL_NOT_FOUND);
  Kernel *k = calloc(1, sizeof *k);
  snprintf(k->name, NAME_BYTES, "%s", name);
  k->library = library;
  k->argument_bytes = (*find(LIBRARY, library))->bytes;
  k->next = kernels;
  return PUT(out, kernels = k);
}
static int kernel_ok(const Kernel *wanted) {
  for (Kernel *k = kernels; k; k = k->next)
    if (k == wanted) return handle_ok(LIBRARY, k->library);
  return note(INVALID_HANDLE);
}
static int set_attribute(Kernel *k, int value) {
  if (kernel_ok(k)) return INVALID_HANDLE;
  return value >= 0 && value <= shared_per_block ? PUT(&k->max_dynamic_shared, value) : note(INVALID_VALUE);
}
static int launch(const LaunchConfig *c, const Kernel *k, void **arguments) {
  if (kernel_ok(k) || stream_ok(c->stream)) return INVALID_HANDLE;
  if (c->block.x > 1024 || (c->shared_bytes > 49152 && c->shared_bytes > (size_t)k->max_dynamic_shared)) return note(INVALID_VALUE);
  unsigned cluster = 1;
  int early = 0;
  for (unsigned i = 0; i < c->num_attributes; i++) {
    const LaunchAttribute *a = &c->attributes[i];
    if (a->id == 4 && a->value.cluster.y == 1) cluster = a->value.cluster.x;
    else if (a->id == 6 && major >= 9) early = a->value.early;
    else return note(INVALID_VALUE);
  }
  if (!cluster || cluster > 8 || c->grid.x % cluster) return note(INVALID_VALUE);
  if (c->stream && c->stream == capturing) {
    noted_launches++;
    return SUCCESS;
  }
  if (num_launches < MAX_LAUNCHES) {
    Launch *l = &launches[num_launches];
    *l = (Launch){k, {c->grid.x, c->grid.y, c->grid.z}, {c->block.x, c->block.y, c->block.z}, c->shared_bytes, (intptr_t)c->stream, cluster, early, {0}};
    memcpy(l->arguments, arguments[0], k->argument_bytes);
  }
  num_launches++;
  return SUCCESS;
}
CALL(cudaLibraryGetKernel, (void **out, void *library, const char *name), kernel(out, library, name))
CALL(cudaFuncSetAttribute, (void *k, int id, int value), id == 8 ? set_attribute(k, value) : note(INVALID_VALUE))
CALL(cudaLaunchKernelExC, (const LaunchConfig *config, const void *k, void **arguments), launch(config, k, arguments))

static int begin(void *stream, int mode) {
  if (!stream || stream_ok(stream) || mode != 2 || capturing) return note(stream ? ILLEGAL_STATE : INVALID_VALUE);
  noted_launches = 0;
  return PUT(&capturing, stream);
}
static int end(void *stream, void **out) {
  if (!stream || stream != capturing) return note(ILLEGAL_STATE);
  capturing = NULL;
  return add(GRAPH, NULL, noted_launches, out);
}
static int instantiate(void **out, const void *graph) {
  return handle_ok(GRAPH, graph) ? INVALID_HANDLE : add(EXECUTABLE, NULL, (*find(GRAPH, graph))->bytes, out);
}
static int launch_graph(const void *graph, const void *stream) {
  if (stream_ok(stream) || handle_ok(EXECUTABLE, graph)) return INVALID_HANDLE;
  num_launches += (*find(EXECUTABLE, graph))->bytes;
  return SUCCESS;
}
CALL(cudaStreamBeginCapture, (void *stream, int mode), begin(stream, mode))
CALL(cudaStreamEndCapture, (void *stream, void **out), end(stream, out))
CALL(cudaGraphInstantiate, (void **out, void *graph, unsigned long long flags), (void)flags, instantiate(out, graph))
CALL(cudaGraphLaunch, (void *graph, void *stream), launch_graph(graph, stream))
RELEASE(cudaGraphDestroy, (void *graph), drop(GRAPH, graph))
RELEASE(cudaGraphExecDestroy, (void *graph), drop(EXECUTABLE, graph))

/* What a descriptor says here: the real one is opaque. */
typedef struct {
  int type, rank, interleave, swizzle, promotion, fill;
  uint64_t address, extents[4], strides[3];
  uint32_t box[4];
} TensorMap;
static int encode(TensorMap *out, int type, unsigned rank, void *address, const uint64_t *extents, const uint64_t *strides,
                  const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill) {
  if ((uintptr_t)out % 64 || (uintptr_t)address % 16 || rank != 4) return note(INVALID_VALUE);
  for (int i = 0; i < 4; i++)
    if (!extents[i] || !box[i] || box[i] > 256 || steps[i] != 1 || (i && strides[i - 1] % 16)) return note(INVALID_VALUE);
  *out = (TensorMap){type, rank, interleave, swizzle, promotion, fill, (uintptr_t)address, {0}, {0}, {0}};
  memcpy(out->extents, extents, sizeof out->extents);
  memcpy(out->strides, strides, sizeof out->strides);
  memcpy(out->box, box, sizeof out->box);
  return SUCCESS;
}
CALL(cuTensorMapEncodeTiled, (TensorMap *out, int type, unsigned rank, void *address, const uint64_t *extents, const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill), encode(out, type, rank, address, extents, strides, box, steps, interleave, swizzle, promotion, fill))

/* The driver's functions; 1: there is none of that name. */
static int entry_point(const char *name, void **out, int *answer) {
  int known = !strcmp(name, "cuTensorMapEncodeTiled");
  *out = known ? (void *)cuTensorMapEncodeTiled : NULL;
  return PUT(answer, !known || old_driver);
}
CALL(cudaGetDriverEntryPointByVersion, (const char *name, void **out, unsigned version, unsigned long long flags, int *answer), (void)version, (void)flags, entry_point(name, out, answer))

API int cudaPeekAtLastError(void) { return last_error; }
API int cudaGetLastError(void) {
  int error = last_error;
  last_error = SUCCESS;
  return error;
}
API const char *cudaGetErrorName(int status) {
  switch (status) {
    case SUCCESS: return "cudaSuccess";
    case INVALID_VALUE: return "cudaErrorInvalidValue";
    case MEMORY_ALLOCATION: return "cudaErrorMemoryAllocation";
    case 35: return "cudaErrorInsufficientDriver";
    case 100: return "cudaErrorNoDevice";
    case INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case INVALID_IMAGE: return "cudaErrorInvalidKernelImage";
    case INVALID_HANDLE: return "cudaErrorInvalidResourceHandle";
    case SYMBOL_NOT_FOUND: return "cudaErrorSymbolNotFound";
    case ILLEGAL_STATE: return "cudaErrorIllegalState";
    case 700: return "cudaErrorIllegalAddress";
    case 712: return "cudaErrorHostMemoryAlreadyRegistered";
    case 719: return "cudaErrorLaunchFailure";
    case 803: return "cudaErrorSystemDriverMismatch";
    case CAPTURE_UNSUPPORTED: return "cudaErrorStreamCaptureUnsupported";
    default: return "cudaErrorUnknown";
  }
}
API const char *cudaGetErrorString(int status) { return status ? "text of the test double" : "no error"; }

/* For tests. Single-threaded, apart from the counters. */
API void double_reset(void) {
  while (objects) drop(objects->kind, objects->at);
  while (kernels) {
    Kernel *next = kernels->next;
    free(kernels);
    kernels = next;
  }
  num_calls = num_launches = fail_at = hold_at = 0;
  fail_status = last_error = device = old_driver = 0;
  capturing = NULL;
  noted_launches = 0;
  pool_threshold = 0;
  num_devices = DOUBLE_DEVICES;
  major = 9, minor = 0, multiprocessors = 132, shared_per_block = 232448;
  memory_bytes = (size_t)1 << 34;
  strcpy(device_name, "Test Double");
}
/* The k-th counted call from now on, first = 1, fails with `status`; k = 0: none does. */
API void double_fail_at(long k, int status) { fail_at = k, fail_status = status, *fail_name = 0; }
/* The k-th call of one name. */
API void double_fail_call(const char *name, long k, int status) {
  fail_at = k, fail_status = status;
  snprintf(fail_name, sizeof fail_name, "%s", name);
}
/* The k-th call of one name from now on waits, first = 1. */
API void double_hold_call(const char *name, long k) {
  snprintf(hold_name, sizeof hold_name, "%s", name);
  hold_at = k;
}
API int double_held(void) {
  pthread_mutex_lock(&mutex);
  int now = held;
  pthread_mutex_unlock(&mutex);
  return now;
}
API void double_let_go(void) {
  pthread_mutex_lock(&mutex);
  held = hold_at = 0;
  pthread_cond_broadcast(&let_go);
  pthread_mutex_unlock(&mutex);
}
API void double_old_driver(int has_no_tensor_maps) { old_driver = has_no_tensor_maps; }
API int64_t double_pool_threshold(void) { return (int64_t)pool_threshold; }
API void double_devices(int count) { num_devices = count; }
API void double_capability(int new_major, int new_minor) { major = new_major, minor = new_minor; }
API void double_multiprocessors(int count, int shared_bytes) { multiprocessors = count, shared_per_block = shared_bytes; }
API void double_memory(size_t bytes) { memory_bytes = bytes; }
API void double_name(const char *name) { snprintf(device_name, NAME_BYTES, "%s", name); }
API long double_calls(void) { return num_calls; }
API const char *double_call(long index) { return index >= 0 && index < num_calls && index < MAX_CALLS ? calls[index] : ""; }
/* Live objects of one kind (see kKindNames), or of all for "". */
API int64_t double_device_bytes(void) { return (int64_t)device_bytes(); }
API long double_live(const char *kind) {
  long count = 0;
  for (Object *o = objects; o; o = o->next) count += !*kind || !strcmp(kind, kKindNames[o->kind]);
  return count;
}
API long double_launches(void) { return num_launches; }
API const char *double_launch_kernel(long index) { return launches[index].kernel->name; }
/* {grid x y z, block x y z}, dynamic shared bytes and stream, argument bytes. */
API const int32_t *double_launch_dimensions(long index) { return launches[index].grid; }
API int64_t double_launch_shared_bytes(long index) { return launches[index].shared_bytes; }
API int64_t double_launch_stream(long index) { return launches[index].stream; }
API int64_t double_launch_cluster(long index) { return launches[index].cluster; }
API int64_t double_launch_early(long index) { return launches[index].early; }
API const unsigned char *double_launch_arguments(long index) { return launches[index].arguments; }
