// The checking mode's part of a kernel's library.
#include "access.h"
