"""What runs beside the device: compiling, the worker, accuracy, timing, machine facts."""
