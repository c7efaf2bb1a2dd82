"""A pool of workers in simulated time, the orders in which it may serve tenants, and what these are asked."""
