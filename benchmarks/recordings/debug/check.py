from ledger import settle

assert settle([10, 20], 1) == 28, settle([10, 20], 1)
print("ok")
