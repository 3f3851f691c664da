"""Studies: methods, seeds and hyper-parameters at equal forward passes, with a table and curves."""
