-- Data to ask for, and a role that may read it and owns nothing.
\set password `echo "$POSTGRES_PASSWORD"`
CREATE TABLE orders (id integer PRIMARY KEY, status text NOT NULL, amount numeric NOT NULL);
INSERT INTO orders
SELECT i, CASE WHEN i % 2 = 0 THEN 'done' ELSE 'pending' END, i * 1.10 FROM generate_series(1, 284) i;
CREATE ROLE reader LOGIN PASSWORD :'password';
GRANT SELECT ON orders TO reader;
