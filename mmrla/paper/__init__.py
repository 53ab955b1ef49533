"""The paper's tables, its rules for counting, and its figures."""
