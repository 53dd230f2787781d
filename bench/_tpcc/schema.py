"""The nine tables of TPC-C, clause 1.3, with the specification's column names.

Money is integer cents, taxes and discounts are ten-thousandths. `item` is replicated; rows of all other tables live on the
partition of their warehouse. ORDER and NEW-ORDER are called `orders` and `new_order`; HISTORY, which has no key in the
specification, is distinguished by transaction and position in it.
"""

from __future__ import annotations

from sqlalchemy import Column, DateTime, Index, Integer, String

from procedures import Database

DISTRICTS_MAX = 10  # a stock row holds the information of ten

db = Database("tpcc")

warehouse = db.table(
    "warehouse",
    Column("w_id", Integer, primary_key=True),
    Column("w_name", String(10), nullable=False),
    Column("w_street_1", String(20), nullable=False),
    Column("w_street_2", String(20), nullable=False),
    Column("w_city", String(20), nullable=False),
    Column("w_state", String(2), nullable=False),
    Column("w_zip", String(9), nullable=False),
    Column("w_tax", Integer, nullable=False),
    Column("w_ytd", Integer, nullable=False),
    partition_by="w_id",
)
district = db.table(
    "district",
    Column("d_w_id", Integer, primary_key=True),
    Column("d_id", Integer, primary_key=True),
    Column("d_name", String(10), nullable=False),
    Column("d_street_1", String(20), nullable=False),
    Column("d_street_2", String(20), nullable=False),
    Column("d_city", String(20), nullable=False),
    Column("d_state", String(2), nullable=False),
    Column("d_zip", String(9), nullable=False),
    Column("d_tax", Integer, nullable=False),
    Column("d_ytd", Integer, nullable=False),
    Column("d_next_o_id", Integer, nullable=False),
    partition_by="d_w_id",
)
customer = db.table(
    "customer",
    Column("c_w_id", Integer, primary_key=True),
    Column("c_d_id", Integer, primary_key=True),
    Column("c_id", Integer, primary_key=True),
    Column("c_first", String(16), nullable=False),
    Column("c_middle", String(2), nullable=False),
    Column("c_last", String(16), nullable=False),
    Column("c_street_1", String(20), nullable=False),
    Column("c_street_2", String(20), nullable=False),
    Column("c_city", String(20), nullable=False),
    Column("c_state", String(2), nullable=False),
    Column("c_zip", String(9), nullable=False),
    Column("c_phone", String(16), nullable=False),
    Column("c_since", DateTime, nullable=False),
    Column("c_credit", String(2), nullable=False),
    Column("c_credit_lim", Integer, nullable=False),
    Column("c_discount", Integer, nullable=False),
    Column("c_balance", Integer, nullable=False),
    Column("c_ytd_payment", Integer, nullable=False),
    Column("c_payment_cnt", Integer, nullable=False),
    Column("c_delivery_cnt", Integer, nullable=False),
    Column("c_data", String(500), nullable=False),
    Index("customer_by_name", "c_w_id", "c_d_id", "c_last", "c_first", "c_id"),
    partition_by="c_w_id",
)
history = db.table(
    "history",
    Column("h_txn_id", Integer, primary_key=True),
    Column("h_number", Integer, primary_key=True),
    Column("h_c_id", Integer, nullable=False),
    Column("h_c_d_id", Integer, nullable=False),
    Column("h_c_w_id", Integer, nullable=False),
    Column("h_d_id", Integer, nullable=False),
    Column("h_w_id", Integer, nullable=False),
    Column("h_date", DateTime, nullable=False),
    Column("h_amount", Integer, nullable=False),
    Column("h_data", String(24), nullable=False),
    partition_by="h_w_id",
)
new_order = db.table(
    "new_order",
    Column("no_w_id", Integer, primary_key=True),
    Column("no_d_id", Integer, primary_key=True),
    Column("no_o_id", Integer, primary_key=True),
    partition_by="no_w_id",
)
orders = db.table(
    "orders",
    Column("o_w_id", Integer, primary_key=True),
    Column("o_d_id", Integer, primary_key=True),
    Column("o_id", Integer, primary_key=True),
    Column("o_c_id", Integer, nullable=False),
    Column("o_entry_d", DateTime, nullable=False),
    Column("o_carrier_id", Integer),
    Column("o_ol_cnt", Integer, nullable=False),
    Column("o_all_local", Integer, nullable=False),
    Index("orders_by_customer", "o_w_id", "o_d_id", "o_c_id", "o_id"),
    partition_by="o_w_id",
)
order_line = db.table(
    "order_line",
    Column("ol_w_id", Integer, primary_key=True),
    Column("ol_d_id", Integer, primary_key=True),
    Column("ol_o_id", Integer, primary_key=True),
    Column("ol_number", Integer, primary_key=True),
    Column("ol_i_id", Integer, nullable=False),
    Column("ol_supply_w_id", Integer, nullable=False),
    Column("ol_delivery_d", DateTime),
    Column("ol_quantity", Integer, nullable=False),
    Column("ol_amount", Integer, nullable=False),
    Column("ol_dist_info", String(24), nullable=False),
    partition_by="ol_w_id",
)
item = db.table(
    "item",
    Column("i_id", Integer, primary_key=True),
    Column("i_im_id", Integer, nullable=False),
    Column("i_name", String(24), nullable=False),
    Column("i_price", Integer, nullable=False),
    Column("i_data", String(50), nullable=False),
    replicated=True,
)
stock = db.table(
    "stock",
    Column("s_w_id", Integer, primary_key=True),
    Column("s_i_id", Integer, primary_key=True),
    Column("s_quantity", Integer, nullable=False),
    *(Column(f"s_dist_{number:02}", String(24), nullable=False) for number in range(1, DISTRICTS_MAX + 1)),
    Column("s_ytd", Integer, nullable=False),
    Column("s_order_cnt", Integer, nullable=False),
    Column("s_remote_cnt", Integer, nullable=False),
    Column("s_data", String(50), nullable=False),
    partition_by="s_w_id",
)
