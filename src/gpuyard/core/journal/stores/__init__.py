"""Where journals are kept. Every store passes tests/contract/test_journal_contract.py."""
