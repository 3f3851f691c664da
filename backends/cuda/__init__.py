"""CUDA through ExecuTorch's own delegate, which compiles the whole step with AOTInductor."""
