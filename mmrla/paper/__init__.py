"""The paper: its tables, its way of counting, its figures."""
