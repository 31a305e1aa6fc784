"""MSL on this CPU: compilation with a cache, fibers, command lists on OS threads."""
