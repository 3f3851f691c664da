"""QNN: the neural processor (HTP) of Snapdragon chips, through ExecuTorch's delegate and Qualcomm's libraries."""
