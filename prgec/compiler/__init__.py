"""From a checkpoint to a program: options, pipelines and the stages of a compilation."""
