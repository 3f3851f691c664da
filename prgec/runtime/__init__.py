"""The parts a device needs to train and to answer; knows neither the compiler nor PyTorch."""
