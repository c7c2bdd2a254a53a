"""A libvirtd whose events come as a test wants: late, twice, never, in another order.

No real libvirt does that, which is why this one exists. It knows domains (their XML, as libvirt
keeps it, and whether they run), volumes, its events and its errors. test_contract.py does the same
things to it and to this machine's libvirtd, and compares all that the product sees of them.

state.SimLibvirt is the model, in the test's process:
    simulated = SimLibvirt()
    domain = simulated.define(xml); simulated.rename(domain, "b"); simulated.undefine(domain)
    simulated.started(domain, xml, detail); simulated.stopped(domain, detail)   # the test's own VM
    simulated.pending                 what has happened and is not delivered: a list to play with
    simulated.deliver(count)          and drop(n), duplicate(n), delay(n) before it; or auto = True
    simulated.refuses = True          no connection, and calls on those that there are fail
    simulated.serving.clear()         calls wait until serving.set(): libvirtd hangs
    simulated.fail("defineXML", code, text, times)
    simulated.before = function       called before each call is answered: a change between two
qemu.Qemu calls the hook as libvirt does, in its order, and says so with events:
    qemu = Qemu(simulated, product.hook_argv); qemu.start(domain); qemu.destroy(domain); ...
server.Server offers it on a socket to the product's own processes, which find standin/libvirt.py
instead of the real module. `disconnect` is libvirtd that is started again.
    product.python = server.PYTHON    # of a tests.product.Product
    with Server(simulated, folder) as server: product.command("reconcile", "-c", server.uri)
simulation.Simulation has all of it: a simulated host, the product as processes, VMs that open their
vGPUs.
calls.connection(simulated) is a virConnect in the test's own process, without a socket: put it in
the place of libvirt.open, and vgpu_hook.libvirtd.Libvirt works on it. Its events come with
`simulated.listeners.append(connection.happened)`.

Where libvirt has a domain's lock while a hook is at work, SimDomain.busy is held, and calls on that
domain wait. The classes that stand for libvirt's have no more than what the product uses.
"""
