"""The stores of the journal. Every store passes tests/contract/test_journal_contract.py."""
