"""Does the score predict correctness? Execution of samples, statistics, calibration, reports."""
