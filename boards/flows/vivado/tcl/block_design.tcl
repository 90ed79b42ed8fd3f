# The block design: processing system, accelerator, interrupt controller.
#
#   processing system --> interconnect --> registers of the accelerator and of the interrupt controller
#   accelerator m_axi_0 .. --> ports to memory, one each
#   accelerator --> interrupt controller --> processing system: PYNQ knows no direct interrupts
#
# processing_system.tcl has what differs between the families.

proc make_block_design {} {
    global settings
    create_bd_design $settings(design)
    set system [add_processing_system]
    set accelerator [create_bd_cell -type ip -vlnv $settings(vlnv) $settings(instance)]
    set controller [create_bd_cell -type ip -vlnv [newest axi_intc] $settings(controller)]
    set_property -dict [list CONFIG.C_IRQ_CONNECTION 1] $controller
    set registers [create_bd_cell -type ip -vlnv [newest smartconnect] registers]
    set_property -dict [list CONFIG.NUM_SI 1 CONFIG.NUM_MI 2] $registers
    set reset [create_bd_cell -type ip -vlnv [newest proc_sys_reset] reset]

    connect_bd_intf_net [get_bd_intf_pins $system/[register_master]] [get_bd_intf_pins $registers/S00_AXI]
    connect_bd_intf_net [get_bd_intf_pins $registers/M00_AXI] [get_bd_intf_pins $accelerator/s_axi]
    connect_bd_intf_net [get_bd_intf_pins $registers/M01_AXI] [get_bd_intf_pins $controller/s_axi]
    set clocked [list $system/[register_clock] $accelerator/clk $controller/s_axi_aclk $registers/aclk \
        $reset/slowest_sync_clk]
    set awake [list $accelerator/rst_n $controller/s_axi_aresetn $registers/aresetn]
    for {set port 0} {$port < $settings(ports)} {incr port} {
        connect_memory $system $accelerator $port clocked awake
    }
    foreach pin $clocked {
        connect_bd_net [get_bd_pins $system/[fabric_clock]] [get_bd_pins $pin]
    }
    connect_bd_net [get_bd_pins $system/[fabric_reset]] [get_bd_pins $reset/ext_reset_in]
    foreach pin $awake {
        connect_bd_net [get_bd_pins $reset/peripheral_aresetn] [get_bd_pins $pin]
    }
    connect_bd_net [get_bd_pins $accelerator/interrupt] [get_bd_pins $controller/intr]
    connect_bd_net [get_bd_pins $controller/irq] [get_bd_pins $system/[interrupt_input]]

    place_registers $system $accelerator/s_axi $settings(registers_address) $settings(registers_bytes)
    place_registers $system $controller/s_axi $settings(controller_address) $settings(controller_bytes)
    assign_bd_address
    validate_bd_design
    save_bd_design
    set file [get_files $settings(design).bd]
    add_files -norecurse [list [make_wrapper -files $file -top]]
    set_property top $settings(design)_wrapper [current_fileset]
    update_compile_order -fileset sources_1
    # Out of context, a strategy of synthesis would reach the wrapper alone.
    set_property synth_checkpoint_mode None $file
}

# Needs the design without a clock of its own, or at another one.
proc set_clock {mhz} {
    global settings
    set file [get_files $settings(design).bd]
    open_bd_design $file
    set_fabric_clock $mhz
    validate_bd_design
    save_bd_design
    generate_target all $file
}

# Where the driver and the hand-off file expect them.
proc place_registers {system bus address bytes} {
    set segment [lindex [get_bd_addr_segs -of_objects [get_bd_intf_pins $bus]] 0]
    assign_bd_address -offset $address -range $bytes -target_address_space [get_bd_addr_spaces $system/Data] $segment -force
}
