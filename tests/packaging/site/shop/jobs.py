from tenant_slots import tenant_job


@tenant_job("imports", tenant="shop")
def import_feed(shop):
    return f"imported for {shop}"
