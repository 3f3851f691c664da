"""The operators a self-training program adds to ExecuTorch: schemas, eager reference and compiled kernels.

Importing this package costs nothing; torch is imported by the submodules:

* `library` registers them with torch.
* `native` finds or builds the compiled kernels and loads them into the ExecuTorch runtime.
* `lora` draws the frozen LoRA A matrices.
* `noise` and `philox` define every random number of the project.
"""
