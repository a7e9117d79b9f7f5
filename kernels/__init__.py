"""The built-in kernels: plug-ins like any other, found through the entry-point group `moetune.kernels`."""
