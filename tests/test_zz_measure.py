import time, pytest
from django.db import connection
from tenant_slots import stats
from tenant_slots.models import TenantQueue, TenantJob
@pytest.mark.django_db
def test_m():
    with connection.cursor() as c:
        c.execute("insert into tenant_slots_tenantqueue (tenant,queue,max_job,current_job,paused,created_at) select 't'||g,'imports',1,0,false,now() from generate_series(1,10000) g")
        c.execute("select min(id) from tenant_slots_tenantqueue"); base=c.fetchone()[0]
        cols="(uuid,tenant_queue_id,task,args,kwargs,options,rq_job_id,state,attempt,crashes,failures,priority,key,worker,error,result)"
        def ins(n, tq, state):
            c.execute(f"insert into tenant_slots_tenantjob {cols} select gen_random_uuid(), {tq}, 'a.b', '[]','{{}}','{{}}','','{state}',1,0,0,0,'','','',null from generate_series(1,{n}) g")
        ins(780000, f"{base}+(g%10000)", 'finished')
        ins(100000, f"{base}", 'waiting')
        ins(100000, f"{base}+(g%10000)", 'waiting')
        ins(10000, f"{base}+(g%10000)", 'running')
        ins(10000, f"{base}+(g%10000)", 'scheduled')
        c.execute("analyze tenant_slots_tenantjob; analyze tenant_slots_tenantqueue")
    def t(name, f):
        for _ in range(3):
            s=time.perf_counter(); r=f(); d=time.perf_counter()-s
        print(name, round(d*1000,1),"ms")
        return r
    t("usage", stats.usage)
    print(stats.usage()[0])
    t("usage one", lambda: stats.usage(tenant="t1"))
    t("usage t77", lambda: stats.usage(tenant="t77"))
    rows = stats.with_waiting(TenantQueue.objects.all()).order_by(*stats.BUSIEST_FIRST)[:100]
    t("page", lambda: list(rows.all()))
    j=TenantJob.objects.waiting().filter(tenant_queue=base).order_by("-pk")[0]
    t("pos", lambda: stats.position_in_line(j)); print(stats.position_in_line(j))
    for f in ("running","queued","scheduled","waiting"):
        qs=TenantQueue.objects.annotate(x=stats._count(getattr(stats._jobs_of_row(),f)()))
        t(f, lambda: list(qs.values("x")))
        print(qs.values("x").explain())
    qs=TenantQueue.objects.annotate(x=stats._oldest_wait(stats._jobs_of_row()))
    t("oldest", lambda: list(qs.values("x")))
    print(qs.values("x").explain())
    print(rows.explain())
    print(TenantJob.objects.waiting().filter(pk=j.pk).query)
