// Compiles the precompiled header (precompiled.h).
