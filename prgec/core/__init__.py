"""The parts that compiler and runtime share: contract, file formats, data, options, the machine."""
