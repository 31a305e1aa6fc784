// The checking mode's part of a kernel's library: what -fsanitize=thread calls before loads and stores.
#include "runtime.h"
#include "check.h"
