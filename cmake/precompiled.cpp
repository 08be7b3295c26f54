// Carries the precompiled header (precompiled.h); holds nothing itself.
