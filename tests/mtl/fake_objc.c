// A stand-in for libobjc and Metal: as much of both as runs mtl/apple.py where there is no macOS.
// The calls are real C calls through a real objc_msgSend, so a wrong cast shows in the numbers.
typedef unsigned long long u64;
typedef long long i64;
typedef struct { u64 width, height, depth; } Size;
typedef struct { u64 location, length; } Range;
typedef struct { i64 major, minor, patch; } Version;
typedef struct { void *name; const char *types; } Description;

void *fake_default_device;  // what MTLCreateSystemDefaultDevice returns
int fake_translated, fake_pools, fake_releases;
Size fake_groups, fake_threads;
Range fake_range;
void *fake_encoder, *fake_pipeline, *fake_buffers[3];
u64 fake_offsets[3], fake_scope;
int (*fake_lock_state)(void);  // PyGILState_Check: has the caller kept the interpreter's lock?
int fake_lock_kept;
const char *fake_length_types = "Q16@0:8";
static char object, array;

static int same(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

static void note_lock(void) { fake_lock_kept = fake_lock_state ? fake_lock_state() : -1; }
static void *itself(void *self, void *cmd) { return self; }
static void release(void *self, void *cmd) { fake_releases++, note_lock(); }
static void *from_utf8(void *cls, void *cmd, char *text) {
    static char copy[64];
    for (char *to = copy; (*to++ = *text++);) {}
    return copy;
}
static Size max_threads(void *self, void *cmd) { return (Size){1024, 512, 256}; }
static u64 length(void *self, void *cmd) { return 1ull << 40; }
static _Bool family(void *self, void *cmd, i64 n) { return n == 1009; }
static Version version(void *self, void *cmd) { return (Version){15, 3, 1}; }
static double start(void *self, void *cmd) { return 2.5; }
static u64 count(void *self, void *cmd) { return self == &array; }
static void *at(void *self, void *cmd, u64 i) { return i == 0 ? &object : 0; }
static void wait(void *self, void *cmd) { note_lock(); }
static void set_pipeline(void *self, void *cmd, void *pipeline) { fake_pipeline = pipeline; }
static void barrier(void *self, void *cmd, u64 scope) { fake_scope = scope; }
static void set_buffers(void *self, void *cmd, void **buffers, u64 *offsets, Range range) {
    for (u64 i = 0; i < range.length && i < 3; i++)
        fake_buffers[i] = buffers[i], fake_offsets[i] = offsets[i];
    fake_range = range;
}
static void dispatch(void *self, void *cmd, Size groups, Size threads) {
    fake_encoder = self, fake_groups = groups, fake_threads = threads;
    note_lock();
}

static struct { const char *name; void *imp; const char *types; } methods[] = {
    {"retain", itself, "@16@0:8"},
    {"release", release, "Vv16@0:8"},
    {"stringWithUTF8String:", from_utf8, "@24@0:8r*16"},
    {"UTF8String", itself, "r*16@0:8"},
    {"maxThreadsPerThreadgroup", max_threads, "{?=QQQ}16@0:8"},
    {"maxBufferLength", length, 0},  // fake_length_types
    {"supportsFamily:", family, "B24@0:8q16"},
    {"processInfo", itself, "@16@0:8"},
    {"operatingSystemVersion", version, "{?=qqq}16@0:8"},
    {"GPUStartTime", start, "d16@0:8"},
    {"count", count, "Q16@0:8"},
    {"objectAtIndex:", at, "@24@0:8Q16"},
    {"dispatchThreadgroups:threadsPerThreadgroup:", dispatch, "v64@0:8{?=QQQ}16{?=QQQ}40"},
    {"setComputePipelineState:", set_pipeline, "v24@0:8@16"},
    {"setBuffers:offsets:withRange:", set_buffers, "v48@0:8r^@16r^Q24{_NSRange=QQ}32"},
    {"memoryBarrierWithScope:", barrier, "v24@0:8Q16"},
    {"waitUntilCompleted", wait, "v16@0:8"},
    {"endEncoding", 0, "v16@0:8"},
};
enum { METHODS = sizeof methods / sizeof *methods };

void *sel_registerName(const char *name) {
    for (int i = 0; i < METHODS; i++)
        if (same(methods[i].name, name)) return &methods[i];
    return 0;
}
void *fake_lookup(void *self, void *cmd) { return *((void **)cmd + 1); }

#if defined(__x86_64__)
#define SEND(name, receiver, selector)                                                          \
    __attribute__((naked)) void name(void) {                                                    \
        __asm__("push %rdi\n push %rsi\n push %rdx\n push %rcx\n push %r8\n"                    \
                "mov " receiver ", %rdi\n mov " selector ", %rsi\n call fake_lookup@PLT\n"      \
                "pop %r8\n pop %rcx\n pop %rdx\n pop %rsi\n pop %rdi\n jmp *%rax\n");           \
    }
SEND(objc_msgSend, "%rdi", "%rsi")
SEND(objc_msgSend_stret, "%rsi", "%rdx")  // the hidden pointer to the result comes first
#elif defined(__aarch64__)
__attribute__((naked)) void objc_msgSend(void) {
    __asm__("stp x0, x1, [sp, #-80]!\n stp x2, x3, [sp, #16]\n stp x4, x5, [sp, #32]\n"
            "stp x6, x8, [sp, #48]\n str x30, [sp, #64]\n bl fake_lookup\n mov x16, x0\n"
            "ldp x2, x3, [sp, #16]\n ldp x4, x5, [sp, #32]\n ldp x6, x8, [sp, #48]\n"
            "ldr x30, [sp, #64]\n ldp x0, x1, [sp], #80\n br x16\n");
}
void objc_msgSend_stret(void) {}
#endif

void *objc_getClass(const char *name) { return name[0] == 'N' ? &object : 0; }
void *objc_getProtocol(const char *name) { return name[0] == 'M' ? &object : 0; }
void *class_getInstanceMethod(void *cls, void *cmd) { return cmd; }
void *class_getClassMethod(void *cls, void *cmd) { return cmd; }
const char *method_getTypeEncoding(void *method) {
    const char *types = *((const char **)method + 2);
    return types ? types : fake_length_types;
}
Description protocol_getMethodDescription(void *p, void *cmd, _Bool required, _Bool instance) {
    if (!cmd || !required || !instance) return (Description){0, 0};
    return (Description){cmd, method_getTypeEncoding(cmd)};
}
void *objc_autoreleasePoolPush(void) {
    note_lock();
    return (void *)(u64)++fake_pools;
}
void objc_autoreleasePoolPop(void *pool) {
    note_lock();
    if (pool == (void *)(u64)fake_pools) fake_pools--;
}
int sysctlbyname(const char *name, void *value, void *size, void *new, u64 n) {
    *(int *)value = fake_translated;
    return same(name, "sysctl.proc_translated") ? 0 : -1;
}
void *MTLCreateSystemDefaultDevice(void) { return fake_default_device; }
void *MTLCopyAllDevices(void) { return &array; }
