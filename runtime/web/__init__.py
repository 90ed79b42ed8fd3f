"""Write a bundle as a folder of static files with which a browser runs the model by WebGPU."""
