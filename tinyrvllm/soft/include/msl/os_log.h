// metal_logging: os_log with printf's formats for scalars. A line names the thread and the place in the source.
#pragma once
#include "simd_ops.h"

extern "C" int printf(const char *, ...);
extern "C" int snprintf(char *, size_t, const char *, ...);
extern "C" int fflush(void *);

namespace metal {
enum os_log_type {
  os_log_type_default,
  os_log_type_info,
  os_log_type_debug,
  os_log_type_error,
  os_log_type_fault
};

namespace detail {
// The format string together with the place it was written: the implicit conversion notes the caller's line.
struct Format {
  const char *text;
  uint line;
  constexpr Format(constant char *t, uint l = __builtin_LINE()) : text((const char *)t), line(l) {}
};
MSL_INLINE auto printable(auto v) {
  static_assert(size<decltype(v)> == 1,
                "os_log prints scalars: pass the components of a vector one by one");
  if constexpr (same<decltype(v), half> || same<decltype(v), bfloat>) return (float)v;
  else return v;
}
}  // namespace detail

struct os_log {
  const char *subsystem = "", *category = "";
  constexpr os_log() = default;
  constexpr os_log(constant char *s, constant char *c)
      : subsystem((const char *)s), category((const char *)c) {}

  template <class... A> void log_with_type(os_log_type type, detail::Format f, A... a) const {
    static const char *const names[] = {"default", "info", "debug", "error", "fault"};
    msl::Arena *arena = msl::arena();
    char text[512];  // printed at once: other OS threads print too
    int n = snprintf(text, sizeof text, "[%s] line %u, threadgroup (%u, %u, %u), thread %u: ",
                     names[type], f.line, arena->group_id.x, arena->group_id.y, arena->group_id.z,
                     arena->first + msl::thread_index());
    snprintf(text + n, sizeof text - n, f.text, detail::printable(a)...);
    printf("%s\n", text);
    fflush(nullptr);
  }
  template <class... A> void log(detail::Format f, A... a) const {
    log_with_type(os_log_type_default, f, a...);
  }
  template <class... A> void log_info(detail::Format f, A... a) const {
    log_with_type(os_log_type_info, f, a...);
  }
  template <class... A> void log_debug(detail::Format f, A... a) const {
    log_with_type(os_log_type_debug, f, a...);
  }
  template <class... A> void log_error(detail::Format f, A... a) const {
    log_with_type(os_log_type_error, f, a...);
  }
  template <class... A> void log_fault(detail::Format f, A... a) const {
    log_with_type(os_log_type_fault, f, a...);
  }
};
inline constexpr os_log os_log_default;
}  // namespace metal
