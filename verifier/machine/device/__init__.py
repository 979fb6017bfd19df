"""The machine as a CUDA device: launches, drivers, torch's questions."""
