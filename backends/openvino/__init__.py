"""OpenVINO: Intel's CPU plug-in, through ExecuTorch's delegate and the libraries of the package openvino."""
